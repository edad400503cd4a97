package wire

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/muster-fleet/muster/test/oracle"
)

// Judge is an oracle that runs as a process.
type Judge struct {
	program string
	cmd     *exec.Cmd
	stdin   io.Closer
	encoder *json.Encoder
	decoder *json.Decoder
}

// Start starts a program of test/cmd/oracle.
func Start(program string) (*Judge, error) {
	cmd := exec.Command(program)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	j := &Judge{program: program, cmd: cmd, stdin: stdin, encoder: json.NewEncoder(stdin), decoder: json.NewDecoder(stdout)}
	return j, cmd.Start()
}

// Stop ends the process.
func (j *Judge) Stop() error {
	if err := j.stdin.Close(); err != nil {
		return err
	}
	return j.cmd.Wait()
}

// Settle is oracle.Settle of its revision.
func (j *Judge) Settle(s oracle.State) oracle.State {
	settled := j.ask(messageOf(s)).state()
	settled.GarbageStays = s.GarbageStays
	return settled
}

// Admitted is oracle.Admitted of its revision.
func (j *Judge) Admitted(s oracle.State, requested *clusterv1.Cluster) *clusterv1.Cluster {
	question := messageOf(s)
	question.Admit = requested
	return j.ask(question).Admit
}

// ask panics if the process does not answer: without a judge no test can go on.
func (j *Judge) ask(question message) (answer message) {
	err := j.encoder.Encode(question)
	if err == nil {
		err = j.decoder.Decode(&answer)
	}
	if err != nil {
		panic(fmt.Sprintf("%s: %v", j.program, err))
	}
	return answer
}
