package page

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

//go:embed axe/axe.min.js
var axe string

// findBrowser looks for Chromium under the names that Debian and others give it, and returns "" if there is none.
func findBrowser() string {
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// tab is a tab of the browser, with the errors in it.
type tab struct {
	testing.TB
	ctx context.Context

	mu       sync.Mutex
	problems []string
}

// newTab opens a tab, or skips the test where there is no browser.
func newTab(t testing.TB) *tab {
	t.Helper()
	found := findBrowser()
	if found == "" {
		if os.Getenv("MUSTER_BROWSER") == "required" {
			t.Fatal("there is no Chromium")
		}
		t.Skip("skipped: no Chromium, so nothing looks at the page (Debian: apt-get install chromium-headless-shell)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(found), chromedp.NoSandbox, chromedp.Flag("disable-dev-shm-usage", true))
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	result := &tab{TB: t, ctx: ctx}
	if err := chromedp.Listen(ctx, result.listen); err != nil {
		t.Fatal(err)
	}
	limit := 3 * time.Minute
	if _, isBenchmark := t.(*testing.B); isBenchmark {
		limit = 10 * time.Minute // It measures durations, even long ones.
	}
	result.ctx, cancel = context.WithTimeout(ctx, limit)
	t.Cleanup(cancel)
	command(result, log.Enable, cdp.Empty{})
	command(result, network.Enable, network.EnableParams{})
	command(result, page.Enable, page.EnableParams{})
	return result
}

func (t *tab) listen(event any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	problem := ""
	switch event := event.(type) {
	case *runtime.EventExceptionThrown:
		problem = fmt.Sprintf("%s %v", event.ExceptionDetails.Text, event.ExceptionDetails.Exception)
	case *runtime.EventConsoleAPICalled:
		problem = fmt.Sprintf("console: %v", event.Args)
	case *log.EventEntryAdded:
		problem = event.Entry.Text + " " + event.Entry.URL
	case *page.EventJavascriptDialogOpening:
		problem = "dialog: " + event.Message
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(event.Request.URL, "http://127.0.0.1:") {
			problem = "request elsewhere: " + event.Request.URL
		}
	}
	if problem != "" {
		t.problems = append(t.problems, problem)
	}
}

func (t *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(t.ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// command sends a command of the protocol.
func command[P, R any](t *tab, c cdp.Command[P, R], params P) {
	t.Helper()
	t.run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, c, params)
		return err
	}))
}

func (t *tab) open(url string) {
	t.Helper()
	t.run(chromedp.Navigate(url))
	t.eventually("document.readyState === 'complete' && document.getElementById('live').textContent !== 'not connected'")
}

// eval returns the value of an expression.
func eval[T any](t *tab, expression string) T {
	t.Helper()
	value, err := chromedp.Run(t.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%.200s: %v", expression, err)
	}
	return value
}

// eventually waits until an expression is true, and returns how long that took.
func (t *tab) eventually(expression string) time.Duration {
	t.Helper()
	begin := time.Now()
	for !eval[bool](t, expression) {
		if time.Since(begin) > 20*time.Second {
			t.Fatalf("not within %s: %s; in the search field is %q, and the page says:\n%s", time.Since(begin), expression, eval[string](t, "document.getElementById('search').value"), eval[string](t, "document.body.innerText"))
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(begin)
}

func (t *tab) press(keys string) {
	t.Helper()
	t.run(chromedp.KeyEvent(keys))
}

// clean fails if there was an error, or a request to another server.
func (t *tab) clean() {
	t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.problems) > 0 {
		t.Errorf("problems %q", t.problems)
	}
}

// accessibleEverywhere checks the page in light and dark colors and on a narrow screen, and leaves it narrow.
func (t *tab) accessibleEverywhere() {
	t.Helper()
	t.accessible()
	t.dark(true)
	t.accessible()
	t.size(420, 900)
	t.accessible()
	if wide := eval[[]string](t, "document.documentElement.scrollWidth <= innerWidth ? [] : [`${document.documentElement.scrollWidth} of ${innerWidth}`, ...[...document.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > innerWidth).map((e) => e.outerHTML.slice(0, 200))]"); len(wide) > 0 {
		t.Errorf("at 420 pixels it has to be scrolled sideways: %q", wide)
	}
}

// accessible runs axe-core, which checks roles, names and contrast.
func (t *tab) accessible() {
	t.Helper()
	eval[int](t, axe+";0")
	text := eval[string](t, `axe.run(document, {resultTypes: ['violations']}).then((r) => JSON.stringify({violations: r.violations.map((v) => ({id: v.id, help: v.help, nodes: v.nodes.slice(0, 3).map((n) => n.html + ' ' + n.failureSummary)})), passes: r.passes.length}))`)
	var result struct {
		Violations []struct {
			ID, Help string
			Nodes    []string
		}
		Passes int
	}
	if err := json.Unmarshal([]byte(text), &result); err != nil {
		t.Fatal(err)
	}
	for _, violation := range result.Violations {
		t.Errorf("axe: %s: %s\n%s", violation.ID, violation.Help, strings.Join(violation.Nodes, "\n"))
	}
	if result.Passes < 10 {
		t.Errorf("axe looked at %d rules only", result.Passes)
	}
}

func (t *tab) size(width, height int64) {
	t.Helper()
	t.run(chromedp.EmulateViewport(width, height))
}

func (t *tab) dark(on bool) {
	t.Helper()
	value := "light"
	if on {
		value = "dark"
	}
	command(t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}}})
}

const root = "../.."

// program is kubectl-muster.
var program string

// TestMain builds the program before any test begins, because compiling can take minutes, and a test's deadline must
// not include it.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "muster-page-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		program = filepath.Join(dir, "kubectl-muster")
		cmd := exec.Command("go", "build", "-o", program, "./cmd/kubectl-muster")
		cmd.Dir, cmd.Stderr = root, os.Stderr
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "building kubectl-muster:", err)
			return 1
		}
		return m.Run()
	}())
}

// started is the process that view started last.
var started int

// view starts the program, and returns the address of its page.
func view(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, append([]string{"view"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started = cmd.Process.Pid
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// viewState shows one of the recorded states.
func viewState(t testing.TB, name string) string {
	t.Helper()
	archive, err := os.ReadFile(filepath.Join(root, "cmd", "kubectl-muster", "testdata", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	// The first file of the archive is the output of kubectl get.
	state, _, _ := strings.Cut(strings.TrimPrefix(string(archive), "-- state.yaml --\n"), "\n-- ")
	file := filepath.Join(t.TempDir(), "state.yaml")
	if err := os.WriteFile(file, []byte(state), 0o600); err != nil {
		t.Fatal(err)
	}
	return view(t, "-f", file)
}

// viewMany shows Clusters from a file, every hundredth of which waits because of its name.
func viewMany(t *testing.T, many, namespaces int) string {
	t.Helper()
	var items []any
	for i := range many {
		reason := "WaitingForControlPlane"
		if i%100 == 17 {
			reason = "NameConflict"
		}
		items = append(items, object{
			"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": object{"namespace": fmt.Sprintf("team-%d", i%namespaces), "name": fmt.Sprintf("c%05d", i)},
			"spec":   object{"topology": object{"classRef": object{"namespace": "classes", "name": "standard"}}},
			"status": object{"conditions": []any{object{"type": "FleetImported", "status": "False", "reason": reason, "message": "not yet"}}},
		})
	}
	text, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "many.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return view(t, "-f", file)
}

// kubectl runs kubectl on the cluster of test/view, or skips the test.
func kubectl(t testing.TB, args ...string) string {
	t.Helper()
	program := os.Getenv("MUSTER_KUBECTL")
	if program == "" {
		t.Skip("skipped: it needs a cluster; make test-page starts one")
	}
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %v: %v: %s", args, err, out)
	}
	return string(out)
}

func patch(t testing.TB, kind, namespace, name, status string) {
	t.Helper()
	kubectl(t, "patch", kind, "-n", namespace, name, "--subresource=status", "--type=merge", "-p", `{"status":`+status+`}`)
}

// many returns how many Clusters test/view says that it has made.
func many(t testing.TB) int {
	count, err := strconv.Atoi(os.Getenv("MUSTER_MANY"))
	if err != nil {
		t.Skip("skipped: it needs a cluster with many Clusters; make test-page and make bench-page start one")
	}
	return count
}

// shows returns an expression that is true once the cell of one of many Clusters has a state.
func shows(name, state string) string {
	return fmt.Sprintf("document.getElementById('cluster/many/%s').querySelector('.cell').ariaLabel === %q", name, name+" "+state)
}

// Expressions about the page.
const (
	cells   = "document.querySelectorAll('.cell').length"
	visible = "[...document.querySelectorAll('.cell')].filter((c) => !c.parentElement.hidden).map((c) => c.parentElement.id).join()"
	details = "document.getElementById('detail').innerText"
)

func says(text string) string { return fmt.Sprintf("%s.includes(%q)", details, text) }

func status(want string) string {
	return fmt.Sprintf("document.getElementById('live').textContent === %q", want)
}

func focused(id string) string {
	return fmt.Sprintf("document.activeElement.closest('[id]').id === %q", id)
}
