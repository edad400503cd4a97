// Command etcd is etcd's own server, built at the version kube-apiserver asks for.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
