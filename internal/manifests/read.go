// Package manifests reads objects from YAML or JSON files, for commands that work without a cluster. It
// unfolds Lists and knows no other kind.
package manifests

import (
	"bufio"
	"bytes"
	"cmp"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Stdin is the path that stands for standard input.
const Stdin = "-"

// Object is one object of a file, with its metadata decoded.
type Object struct {
	metav1.PartialObjectMetadata
	// File is the path it was read from.
	File string
	// Document counts the documents of the file from 1.
	Document int
	// Raw is the object as JSON without duplicate keys.
	Raw []byte

	// document is what it was read from, which begins at this line of the file, and item its place in a List.
	document []byte
	line     int
	item     string
}

// Wrap adds the object's file and name to an error.
func (o *Object) Wrap(err error) error {
	return fmt.Errorf("%s: document %d, %s %s: %w", o.File, o.Document, o.Kind, cmp.Or(o.Name, o.GenerateName), err)
}

// Problem is a file or a document that cannot be read.
type Problem struct {
	File string
	// Line is where the document begins; 0 if the file cannot be read.
	Line int
	// Err names the document, but not the file.
	Err error
}

func (p *Problem) Error() string { return p.File + ": " + p.Err.Error() }

// Unwrap returns the error without the file.
func (p *Problem) Unwrap() error { return p.Err }

// Read reads the objects of several files, in order. It skips empty documents. An unreadable file or
// document is a problem, but does not keep Read from reading the others.
func Read(paths []string, stdin io.Reader) ([]Object, []*Problem) {
	var r reader
	for _, path := range paths {
		r.read(path, stdin)
	}
	return r.objects, r.problems
}

type reader struct {
	objects  []Object
	problems []*Problem
}

func (r *reader) read(path string, stdin io.Reader) {
	content, err := contentOf(path, stdin)
	if err != nil {
		r.problems = append(r.problems, &Problem{File: path, Err: err})
		return
	}
	rest := bytes.NewReader(content)
	lines := bufio.NewReader(rest)
	documents := utilyaml.NewYAMLReader(lines)
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		line := firstLine(content[:len(content)-rest.Len()-lines.Buffered()], document)
		var raw []byte
		if err == nil {
			raw, err = yaml.YAMLToJSONStrict(document)
		}
		if err == nil {
			err = r.add(Object{File: path, Document: number, Raw: raw, document: document, line: line})
		}
		if err != nil {
			r.problems = append(r.problems, &Problem{path, line, fmt.Errorf("document %d: %w", number, err)})
		}
	}
}

func contentOf(path string, stdin io.Reader) ([]byte, error) {
	if path == Stdin {
		return io.ReadAll(stdin)
	}
	content, err := os.ReadFile(path) //nolint:gosec // The user names the file.
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return nil, pathError.Err // Problem names the file.
	}
	return content, err
}

// add adds an object, or the items of a List.
func (r *reader) add(object Object) error {
	if string(object.Raw) == "null" {
		return nil
	}
	if object.Raw[0] != '{' {
		return errors.New("is not a Kubernetes object")
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(object.Raw, &object.PartialObjectMetadata); err != nil {
		return err
	}
	if object.APIVersion != "v1" || object.Kind != "List" {
		r.objects = append(r.objects, object)
		return nil
	}
	var list struct {
		Items []stdjson.RawMessage `json:"items"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(object.Raw, &list); err != nil {
		return err
	}
	var errs []error
	place := object.item
	object.PartialObjectMetadata = metav1.PartialObjectMetadata{}
	for i, item := range list.Items {
		object.Raw, object.item = item, fmt.Sprintf("%s.items[%d]", place, i)
		if err := r.add(object); err != nil {
			errs = append(errs, fmt.Errorf("item %d: %w", i+1, err))
		}
	}
	return errors.Join(errs...)
}
