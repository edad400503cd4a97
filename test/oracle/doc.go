// Package oracle says, from the contract and from nothing else, what Muster has to
// make of any state of a management cluster. It shares no code with what it judges:
// every name, key and default is spelled out once more.
//
// Settle is the whole of it: given everything that Muster reads and writes, it
// returns the same at the moment Muster comes to rest, if nobody else does anything.
// The past matters only through what lies in the state: the pin on a Cluster, and
// objects that are frozen and therefore stay as they are.
package oracle
