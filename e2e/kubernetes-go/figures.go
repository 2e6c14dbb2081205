package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// A case with many nodes, and the number of measurements.
type cluster struct {
	question
	Nodes  []*v1.Node `json:"nodes"`
	Rounds int        `json:"rounds"`
}

type times struct {
	MedianNs int64 `json:"medianNs"`
	P99Ns    int64 `json:"p99Ns"`
	// The number of nodes on which the claims fit.
	Fit int `json:"fit"`
}

// figures measures a scheduler's work for one pod: one NewAllocator, and one Allocate on each node. Before the
// measurement it compiles selectors and adds up allocated capacity.
func figures(in io.Reader, out io.Writer) error {
	var q cluster
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	features, err := switches(q.Features)
	if err != nil {
		return err
	}
	state, err := inUse(&q.question)
	if err != nil {
		return err
	}
	cache := cel.NewCache(100, cel.Features{EnableConsumableCapacity: features.ConsumableCapacity})
	ctx := context.Background()
	fit := 0
	round := func() (time.Duration, error) {
		fit = 0
		begin := time.Now()
		allocator, err := structured.NewAllocator(ctx, features, *state, classes(q.Classes), q.Slices, cache)
		if err != nil {
			return 0, err
		}
		for _, node := range q.Nodes {
			results, err := allocator.Allocate(ctx, node, q.Claims)
			if err != nil {
				return 0, err
			}
			if results != nil {
				fit++
			}
		}
		return time.Since(begin), nil
	}
	if _, err := round(); err != nil {
		return err
	}
	var took []time.Duration
	for range max(q.Rounds, 1) {
		one, err := round()
		if err != nil {
			return err
		}
		took = append(took, one)
	}
	slices.Sort(took)
	return json.NewEncoder(out).Encode(times{
		MedianNs: took[len(took)/2].Nanoseconds(),
		P99Ns:    took[len(took)*99/100].Nanoseconds(),
		Fit:      fit,
	})
}
