// Guarded calls: go run guard.go DEPENDENCY URL...   Without a decision, the call is made and not reported.
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

type decision struct {
	Allowed   *bool  `json:"allowed"`
	Permit    string `json:"permit"`
	Reason    string `json:"reason"`
	TimeoutMs int64  `json:"timeout_ms"`
}

// A unix socket needs a Transport whose DialContext connects to it; SIDECAR_URL is http://localhost then.
func ask(path string, content any) (found decision) {
	within, err := time.ParseDuration(os.Getenv("SIDECAR_TIMEOUT_MS") + "ms")
	if err != nil {
		within = 100 * time.Millisecond
	}
	body, _ := json.Marshal(content)
	sidecar := cmp.Or(os.Getenv("SIDECAR_URL"), "http://127.0.0.1:7480")
	request, err := http.NewRequest("POST", sidecar+path, bytes.NewReader(body))
	if err != nil { // a mistake here, such as an address without http://
		fmt.Fprintln(os.Stderr, "sidecar:", err)
		return found
	}
	request.Header.Set("Content-Type", "application/json")
	token, _ := os.ReadFile(os.Getenv("SIDECAR_TOKEN_FILE")) // now: the file may have been replaced
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	answer, err := (&http.Client{Timeout: within}).Do(request)
	if err == nil {
		defer answer.Body.Close()
		if answer.StatusCode == http.StatusOK {
			json.NewDecoder(answer.Body).Decode(&found)
		} else if answer.StatusCode < 500 { // a mistake here, such as a wrong token
			io.Copy(os.Stderr, answer.Body)
		}
	}
	return found
}

func kindOf(err error) string {
	var dial *net.OpError
	var name *net.DNSError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.Is(err, context.Canceled): // by the caller: the vendor did nothing wrong
		return "cancelled"
	case os.IsTimeout(err):
		return "timeout"
	case errors.As(err, &name):
		return "dns"
	case errors.As(err, &certificate):
		return "tls"
	case errors.As(err, &dial) && dial.Op == "dial":
		return "connect"
	}
	return "reset"
}

func guarded(dependency string, send func(within time.Duration) (*http.Response, error)) (*http.Response, error) {
	call := ask("/v1/calls", map[string]any{"dependency": dependency})
	if call.Allowed != nil && !*call.Allowed {
		return nil, fmt.Errorf("refused %s", call.Reason)
	}
	begun := time.Now()
	within := 30 * time.Second // without a decision, the call has a bound too
	if call.TimeoutMs > 0 {
		within = time.Duration(call.TimeoutMs) * time.Millisecond
	}
	answer, err := send(within)
	report := map[string]any{"permit": call.Permit, "elapsed_ms": time.Since(begun).Milliseconds()}
	if err == nil {
		report["status"], report["retry_after"] = answer.StatusCode, answer.Header.Get("Retry-After")
	} else {
		report["error"] = kindOf(err)
	}
	if call.Permit != "" {
		ask("/v1/reports", []any{report})
	}
	return answer, err
}

func main() {
	for _, url := range os.Args[2:] {
		answer, err := guarded(os.Args[1], func(within time.Duration) (*http.Response, error) {
			return (&http.Client{Timeout: within}).Get(url)
		})
		if err != nil {
			fmt.Println(err)
			continue
		}
		answer.Body.Close()
		fmt.Println(answer.StatusCode)
	}
}
