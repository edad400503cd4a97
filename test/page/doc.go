// Package page tests the page of `kubectl muster view` in a real browser. It is a module of its own because the
// driver is large. axe/axe.min.js is axe-core 4.14.1, by Deque Systems, under the Mozilla Public License 2.0, as its
// notice says; only tests use it.
package page
