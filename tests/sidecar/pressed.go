// An application that calls its vendor as often as it can, until it is ended. The part of docs/examples/sidecar/guard.go that is
// copied guards its calls.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"
)

func callAgainAndAgain() {
	for {
		asked := strconv.FormatInt(time.Now().UnixMicro(), 10)
		answer, err := guarded("payments", func(within time.Duration) (*http.Response, error) {
			request, _ := http.NewRequest("GET", os.Getenv("VENDOR_URL"), nil)
			request.Header.Set("X-Asked-Us", asked)
			return (&http.Client{Timeout: within}).Do(request)
		})
		if err != nil {
			fmt.Println(err)
			continue
		}
		answer.Body.Close()
		fmt.Println(answer.StatusCode)
	}
}

func main() {
	for caller := 1; caller < 4; caller++ {
		go callAgainAndAgain()
	}
	callAgainAndAgain()
}
