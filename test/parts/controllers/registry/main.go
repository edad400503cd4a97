// Command registry is an OCI registry in memory, served over https to those who know the
// password.
package main

import (
	"crypto/subtle"
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	address := flag.String("address", "127.0.0.1:5000", "The address to listen at.")
	certificate := flag.String("cert", "", "The file of the certificate.")
	key := flag.String("key", "", "The file of its key.")
	user := flag.String("user", "", "Who may use it.")
	password := flag.String("password", "", "The password.")
	flag.Parse()
	server := &http.Server{
		Addr: *address, ReadHeaderTimeout: time.Minute,
		Handler: only(*user, *password, registry.New()),
	}
	log.Fatal(server.ListenAndServeTLS(*certificate, *key))
}

// only lets in who knows the password.
func only(user, password string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		gotUser, gotPassword, _ := r.BasicAuth()
		if subtle.ConstantTimeCompare([]byte(gotUser+":"+gotPassword), []byte(user+":"+password)) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
