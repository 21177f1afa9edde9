// Package harness does the work of the comparison on a peer that has a Go client, and keeps the books.
//
// A harness is called with the broker's port, a scenario, a number of jobs and the bytes of a body,
// and prints one line of JSON. The runner, run.py, starts the broker and reads that line.
package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Peer is the interface of a queue.
type Peer interface {
	// Producer returns a call that enqueues one job and returns when it is answered. Several
	// producers work side by side.
	Producer() (func(body []byte) error, error)
	// Lanes is the number of Bulk calls at once.
	Lanes() int
	// Bulk enqueues all that next gives by the peer's own means for many jobs, until it gives nil,
	// and returns when everything is answered.
	Bulk(next func() []byte) error
	// Consume starts the workers: each hands the body of every job to deliver, then acks it.
	Consume(deliver func(body []byte)) (stop func(), err error)
	// Left asks the broker how many jobs it has, those that are not acked yet among them.
	Left() (int, error)
}

const (
	// Calls in flight when one call enqueues one job.
	producers = 50
	// Interval of checks whether the broker has removed the last acked jobs.
	look = time.Millisecond
	// Pause between two jobs to an idle worker.
	pause = 5 * time.Millisecond
	// Divisor of the jobs that go ahead untimed, like in `ringq bench`.
	warmUp = 20
)

// Result is the line that the runner reads, with zeros where the scenario has no figure.
type Result struct {
	Delivered int     `json:"delivered"`
	Doubled   int     `json:"doubled"`
	Left      int     `json:"left"`
	Enqueue   float64 `json:"enqueue_s"`
	Consume   float64 `json:"consume_s"`
	Total     float64 `json:"total_s"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
}

// Main runs a scenario on the peer that open connects to.
func Main(open func(port string) (Peer, error)) {
	if len(os.Args) != 5 {
		fail(fmt.Errorf("usage: %s PORT unary|life|both|idle JOBS BODY_BYTES", os.Args[0]))
	}
	jobs, bytes := number(os.Args[3]), number(os.Args[4])
	peer, err := open(os.Args[1])
	fail(err)
	scenarios := map[string]func(Peer, *books) (Result, error){
		"unary": unary, "life": life, "both": both, "idle": idle,
	}
	scenario := scenarios[os.Args[2]]
	_, err = scenario(peer, newBooks(max(jobs/warmUp, 1), bytes))
	fail(err)
	books := newBooks(jobs, bytes)
	result, err := scenario(peer, books)
	fail(err)
	result.Doubled = int(books.doubled.Load())
	result.Delivered = int(books.delivered.Load()) - result.Doubled
	result.Left, err = peer.Left()
	fail(err)
	fail(json.NewEncoder(os.Stdout).Encode(result))
}

// Enqueue one by one, timed; then take and ack, not timed.
func unary(peer Peer, books *books) (Result, error) {
	start := time.Now()
	err := side(producers, func() error {
		enqueue, err := peer.Producer()
		for body := books.next(); err == nil && body != nil; body = books.next() {
			err = enqueue(body)
		}
		return err
	})
	result := Result{Enqueue: time.Since(start).Seconds()}
	if err == nil {
		err = drain(peer, books)
	}
	return result, err
}

// Enqueue in bulk, then take and ack; both timed.
func life(peer Peer, books *books) (Result, error) {
	start := time.Now()
	err := bulk(peer, books)
	enqueued := time.Now()
	if err == nil {
		err = drain(peer, books)
	}
	return Result{
		Enqueue: enqueued.Sub(start).Seconds(),
		Consume: time.Since(enqueued).Seconds(),
		Total:   time.Since(start).Seconds(),
	}, err
}

// Enqueue in bulk while taking and acking.
func both(peer Peer, books *books) (Result, error) {
	start := time.Now()
	stop, err := peer.Consume(books.deliver)
	if err != nil {
		return Result{}, err
	}
	defer stop()
	if err = bulk(peer, books); err == nil {
		err = books.settled(peer)
	}
	return Result{Total: time.Since(start).Seconds()}, err
}

// Single jobs to a worker that waits: from the start of the call to the delivery.
func idle(peer Peer, books *books) (Result, error) {
	stop, err := peer.Consume(books.deliver)
	if err != nil {
		return Result{}, err
	}
	defer stop()
	enqueue, err := peer.Producer()
	var took []float64
	for body := books.next(); err == nil && body != nil; body = books.next() {
		time.Sleep(pause)
		start := time.Now()
		err = enqueue(body)
		took = append(took, float64((<-books.arrived).Sub(start).Microseconds()))
	}
	if err == nil {
		err = books.settled(peer)
	}
	slices.Sort(took)
	rank := func(part float64) float64 { return took[int(part*float64(len(took)-1))] }
	return Result{P50: rank(0.5), P99: rank(0.99)}, err
}

func bulk(peer Peer, books *books) error {
	return side(peer.Lanes(), func() error { return peer.Bulk(books.next) })
}

func drain(peer Peer, books *books) error {
	stop, err := peer.Consume(books.deliver)
	if err != nil {
		return err
	}
	defer stop()
	return books.settled(peer)
}

// Does the same several times side by side; the first error counts.
func side(times int, work func() error) error {
	errs := make(chan error, times)
	for range times {
		go func() { errs <- work() }()
	}
	var first error
	for range times {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}

// books count every job by its number.
type books struct {
	bytes     int
	given     atomic.Int64
	seen      []atomic.Bool
	delivered atomic.Int64
	doubled   atomic.Int64
	// Time of arrival of a job; one place, for the caller that waits for each.
	arrived chan time.Time
	all     chan struct{}
	once    sync.Once
}

func newBooks(jobs, bytes int) *books {
	return &books{
		bytes: bytes, seen: make([]atomic.Bool, jobs),
		arrived: make(chan time.Time, 1), all: make(chan struct{}),
	}
}

// next is the body of the next job: its number, filled up. Nil when there are no more.
func (b *books) next() []byte {
	number := b.given.Add(1) - 1
	if number >= int64(len(b.seen)) {
		return nil
	}
	return fmt.Appendf(make([]byte, 0, b.bytes), "%0*d", b.bytes, number)
}

func (b *books) deliver(body []byte) {
	now := time.Now()
	if len(body) != b.bytes {
		fail(fmt.Errorf("a body of %d bytes came back with %d", b.bytes, len(body)))
	}
	if b.seen[number(string(body))].Swap(true) {
		b.doubled.Add(1)
	}
	select {
	case b.arrived <- now:
	default:
	}
	if b.delivered.Add(1)-b.doubled.Load() >= int64(len(b.seen)) {
		b.once.Do(func() { close(b.all) })
	}
}

// settled waits until every job was delivered and the broker reports that all of them are acked.
func (b *books) settled(peer Peer) error {
	<-b.all
	for {
		left, err := peer.Left()
		if err != nil || left == 0 {
			return err
		}
		time.Sleep(look)
	}
}

func number(text string) int {
	number, err := strconv.Atoi(text)
	fail(err)
	return number
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
