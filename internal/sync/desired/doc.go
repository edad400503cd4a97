// Package desired says what Fleet's objects are to be. Each function is pure: the
// same CAPI objects and settings give the same Fleet object, and nothing else is
// looked at. Package apply compares the result with what is there and writes it;
// package sync decides when, and in which order.
package desired
