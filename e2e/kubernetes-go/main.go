// The answers of Kubernetes' own packages, for tests and benchmarks that compare.
//
// 	kubernetes-go allocate   a case in the form of the conformance vectors ─► {"results": [...]} or {"error": "..."}
// 	kubernetes-go cel        {"expression": "...", "device": {...}} ─► {"compiles": ..., "result": ..., "cost": ...,
// 	"error": "..."}
// 	kubernetes-go admission  {"policies": [...], "objects": [...]} ─► {"verdicts": [{"policies": ..., "denied": [...],
// 	"errors": [...]}]}
// 	kubernetes-go metadata   a claim's metadata file ─► {"path": ..., "read": {...}} or {"invalid": ...} or {"error": ...}
// 	kubernetes-go figures    one cluster, measured: figures.go
//
// All but figures take a line of JSON and answer with one, until standard input ends.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"k8s.io/dynamic-resource-allocation/structured"
)

var programs = map[string]func(io.Reader, io.Writer) error{
	"allocate":  answerLines(allocateReply),
	"cel":       answerLines(celReply),
	"admission": answerLines(admissionReply),
	"metadata":  answerLines(metadataReply),
	"figures":   figures,
}

func main() {
	structured.EnableAllocators("incubating") // the default gates' choice
	word := strings.Join(os.Args[1:], " ")
	program, found := programs[word]
	if !found {
		fmt.Fprintf(os.Stderr, "kubernetes-go %s: say allocate, cel, admission, metadata or figures\n", word)
		os.Exit(2)
	}
	if err := program(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "kubernetes-go %s: %v\n", word, err)
		os.Exit(1)
	}
}

// answerLines answers each line before it reads the next.
func answerLines[Question, Answer any](reply func(*Question) Answer) func(io.Reader, io.Writer) error {
	return func(in io.Reader, out io.Writer) error {
		lines := bufio.NewScanner(in)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			var question Question
			if err := json.Unmarshal(lines.Bytes(), &question); err != nil {
				return fmt.Errorf("question %q: %w", lines.Text(), err)
			}
			text, err := json.Marshal(reply(&question))
			if err != nil {
				return err
			}
			if _, err := out.Write(append(text, '\n')); err != nil {
				return err
			}
		}
		return lines.Err()
	}
}
