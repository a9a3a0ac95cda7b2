package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log"
	"math/big"
	"net"
	"net/http"
	"sync"
	"time"
)

// Logs of all pods by namespace and name.
type Logs struct {
	mutex sync.Mutex
	parts map[string][]logPart
}

type logPart struct {
	at   time.Time
	text []byte
}

// PodLog writes to the log of a pod.
type PodLog struct {
	logs *Logs
	key  string
}

func (l *PodLog) Write(text []byte) (int, error) {
	l.logs.mutex.Lock()
	defer l.logs.mutex.Unlock()
	part := logPart{time.Now(), append([]byte{}, text...)}
	l.logs.parts[l.key] = append(l.logs.parts[l.key], part)
	return len(text), nil
}

// Answers with the log of a pod since a time.
func (l *Logs) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	since, _ := time.Parse(time.RFC3339, r.URL.Query().Get("sinceTime"))
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for _, part := range l.parts[r.PathValue("namespace")+"/"+r.PathValue("pod")] {
		if !part.at.Before(since) {
			_, _ = w.Write(part.text)
		}
	}
}

// Serves logs over HTTPS at the node's address, with a certificate that nobody checks. Returns the port.
func (l *Logs) serve() (int32, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return 0, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return 0, err
	}
	certificate := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	listener, err := tls.Listen("tcp", nodeAddress+":0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		return 0, err
	}
	mux := http.NewServeMux()
	mux.Handle("/containerLogs/{namespace}/{pod}/{container}", l)
	go func() { log.Fatal(http.Serve(listener, mux)) }()
	return int32(listener.Addr().(*net.TCPAddr).Port), nil
}
