package ringq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "ringq/examples/go/ringq/stubs"
)

// DeadLetter is wrapped by the error of a handler for a job that can never succeed.
var DeadLetter = errors.New("dead letter")

var (
	errSilent       = errors.New("no message came in time")
	unavailableItem = errors.New("SETTLE_ERROR_UNAVAILABLE")
)

// A stopped worker reads on: a job that never arrives would wait for the orphan grace, as after a crash.
const arrivalTime = 200 * time.Millisecond

const gatherTime, itemsMax, bytesMax = 5 * time.Millisecond, 1000, 3 << 20 // Items of that time share a call of this size.
const unavailable, notFound = pb.SettleError_SETTLE_ERROR_UNAVAILABLE, pb.SettleError_SETTLE_ERROR_NOT_FOUND
const refused pb.SettleError = -1 // Beside the SettleErrors of the contract: the call failed for good.

// Job is a delivery in hand.
type Job struct {
	*pb.Delivery
	worker    *Worker
	ctx       context.Context // Ends when the handler must stop.
	cancel    context.CancelFunc
	gone      chan struct{} // Closed when the job is settled or lost.
	lease     time.Duration
	expires   time.Time // By the monotonic clock, as all times here.
	half, end *time.Timer
	extending *pb.ExtendItem // The newest; an older one is no longer repeated.
	outcome   string         // Set once the job is being settled.
}

// Worker holds one stream after the other. Set the exported fields, then call Run.
type Worker struct {
	Client      *Client
	Handle      func(ctx context.Context, job *Job) (result string, err error)
	Request     *pb.StreamRequest
	Concurrency int
	Grace       time.Duration // For handlers, after ctx has ended.

	stopping    chan struct{}
	streamsOver chan struct{}
	handlers    context.Context // Ends when the grace is over.
	mu          sync.Mutex      // Guards all below, and the lease and outcome of each job.
	jobs        map[string]*Job
	waiting     []*Job // Without a handler.
	running     int
	counts      map[string]int
	orphanGrace time.Duration
	acks        gatherer[*pb.AckItem]
	nacks       gatherer[*pb.NackItem]
	extends     gatherer[*pb.ExtendItem]
}

// Run works until ctx ends. Then handlers finish; the other jobs go back, also those that are on their way here.
func (w *Worker) Run(ctx context.Context) {
	w.stopping, w.streamsOver, w.orphanGrace = make(chan struct{}), make(chan struct{}), 5*time.Second
	w.jobs, w.counts = map[string]*Job{}, map[string]int{}
	w.acks = gatherer[*pb.AckItem]{w: w, name: "Ack"}
	w.acks.call = func(ctx context.Context, items []*pb.AckItem) (failures, error) {
		answer, err := w.Client.Ack(ctx, &pb.AckRequest{Items: items})
		return answer.GetFailures(), err
	}
	w.nacks = gatherer[*pb.NackItem]{w: w, name: "Nack"}
	w.nacks.call = func(ctx context.Context, items []*pb.NackItem) (failures, error) {
		answer, err := w.Client.Nack(ctx, &pb.NackRequest{Items: items})
		return answer.GetFailures(), err
	}
	w.extends = gatherer[*pb.ExtendItem]{w: w, name: "Extend"}
	w.extends.call = func(ctx context.Context, items []*pb.ExtendItem) (failures, error) {
		answer, err := w.Client.Extend(ctx, &pb.ExtendRequest{Items: items})
		return answer.GetFailures(), err
	}
	handlers, cancelHandlers := context.WithCancel(context.Background())
	stream, cancelStream := context.WithCancel(context.Background())
	w.handlers = handlers
	go func() {
		w.readStreams(stream)
		close(w.streamsOver)
	}()
	<-ctx.Done()

	log.Printf("stopping: %d jobs in hand", len(w.inHand()))
	w.mu.Lock()
	close(w.stopping)
	w.mu.Unlock()
	time.Sleep(arrivalTime)
	cancelStream()
	<-w.streamsOver
	w.releaseWaiting()
	w.extendAll() // Or the server releases them, too, when the orphan grace is over.
	wait(w.inHand(), w.Grace)
	cancelHandlers()
	wait(w.inHand(), w.Client.Timeout)
	w.mu.Lock()
	defer w.mu.Unlock()
	log.Printf("stopped: acked=%d nacked=%d released=%d lost=%d",
		w.counts["acked"], w.counts["nacked"], w.counts["released"], w.counts["lost"]+len(w.jobs))
}

func wait(jobs []*Job, limit time.Duration) {
	over := time.After(limit)
	for _, job := range jobs {
		select {
		case <-job.gone:
		case <-over:
			return
		}
	}
}

func closed(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

// --- the stream ---

// readStreams holds one stream after the other; each continues the one before and adopts its jobs.
func (w *Worker) readStreams(ctx context.Context) {
	pauses := NewPauses(250*time.Millisecond, 5*time.Second)
	for !closed(w.stopping) {
		started := time.Now()
		opened, err := w.readStream(ctx, pauses)
		if ctx.Err() != nil {
			return
		}
		var pause time.Duration
		if err == nil {
			log.Print("stream ended, opening the next one")
			if time.Since(started) < time.Second { // Streams that end at once make no tight loop.
				pause = pauses.Next()
			}
		} else {
			if opened { // It broke. The server keeps its jobs if they are extended within the orphan grace.
				w.extendAll()
			}
			repeatable, _, delay := Explain(err)
			if !repeatable { // The worker lacks a right, perhaps: that may come back.
				pauses.bound = pauses.longest
			}
			pause = min(delay, 30*time.Second) + pauses.Next()
			log.Printf("no stream, next in %v: %v", pause.Round(time.Millisecond), err)
		}
		select {
		case <-time.After(pause):
		case <-w.stopping:
		}
	}
}

func (w *Worker) readStream(ctx context.Context, pauses *Pauses) (opened bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx) // No deadline, but a watchdog.
	defer cancel(nil)
	silence := w.Client.Timeout // The first message comes at once.
	watchdog := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watchdog.Stop()
	stream, err := w.Client.Stream(ctx, w.Request)
	for err == nil {
		var message *pb.StreamResponse
		if message, err = stream.Recv(); err != nil {
			break
		}
		opened, pauses.bound = true, 250*time.Millisecond
		if info := message.Info; info != nil {
			log.Printf("stream %s of server %s opened", info.StreamId, info.Replica)
			w.Request.ContinuesStreamId = info.StreamId
			if interval := info.HeartbeatInterval.AsDuration(); interval > 0 {
				silence = 3 * interval
			}
			if grace := info.OrphanGrace.AsDuration(); grace > 0 {
				w.mu.Lock()
				w.orphanGrace = grace
				w.mu.Unlock()
			}
			w.extendAll() // A revocation between two streams is learnt from the answer.
		}
		watchdog.Reset(silence)
		for _, revocation := range message.Revocations {
			if job := w.jobOf(revocation.Receipt); job != nil {
				w.lose(job, "revoked: "+revocation.Reason.String())
			}
		}
		w.take(message.Deliveries)
		if message.Draining {
			log.Print("the server drains") // It ends the stream now.
		}
	}
	switch {
	case err == io.EOF:
		return opened, nil
	case context.Cause(ctx) == errSilent:
		return opened, fmt.Errorf("%w: %w", errSilent, err) // The inner error names why there is no connection.
	}
	return opened, err
}

// --- jobs ---

func (w *Worker) take(deliveries []*pb.Delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, delivery := range deliveries {
		if w.jobs[delivery.Receipt] != nil {
			continue // It came twice.
		}
		job := &Job{Delivery: delivery, worker: w, gone: make(chan struct{}), lease: delivery.LeaseDuration.AsDuration()}
		if job.lease <= 0 {
			job.lease = w.Request.LeaseDuration.AsDuration()
		}
		job.ctx, job.cancel = context.WithCancel(w.handlers)
		job.expires = time.Now().Add(job.lease)
		job.half = time.AfterFunc(job.lease/2, func() { w.extend(job) })
		job.end = time.AfterFunc(job.lease, func() { w.lose(job, "its lease is over") })
		w.jobs[job.Receipt] = job
		w.waiting = append(w.waiting, job)
	}
	w.startHandlers()
}

// startHandlers passes waiting jobs to free handlers. w.mu is locked.
func (w *Worker) startHandlers() {
	for w.running < w.Concurrency && len(w.waiting) > 0 && !closed(w.stopping) {
		job := w.waiting[0]
		w.waiting = w.waiting[1:]
		if !closed(job.gone) {
			w.running++
			go w.work(job)
		}
	}
}

func (w *Worker) work(job *Job) {
	result, failure := w.handle(job)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
	w.startHandlers()
	switch {
	case closed(job.gone): // Lost while it ran: nothing is settled.
	case failure == nil:
		job.outcome = "acked"
		w.acks.add(job, &pb.AckItem{Receipt: job.Receipt, Result: result})
	case job.ctx.Err() != nil: // The grace is over.
		w.release(job)
	default:
		text := strings.ToValidUTF8(failure.Error[:min(len(failure.Error), 4096)], "")
		log.Printf("%s failed, attempt %d, traceparent %s: %s", job.Name(), job.Attempt, job.Headers["traceparent"], text)
		failure.Receipt, failure.Error = job.Receipt, text
		job.outcome = "nacked"
		w.nacks.add(job, failure)
	}
}

// handle returns the result, or the Nack of the failure. No method of the error is called elsewhere: that of a
// nil pointer in an error, for example, panics.
func (w *Worker) handle(job *Job) (result *pb.Payload, failure *pb.NackItem) {
	defer func() {
		if reason := recover(); reason != nil {
			failure = &pb.NackItem{Action: pb.NackAction_NACK_ACTION_RETRY, Error: fmt.Sprintf("panic: %v", reason)}
		}
	}()
	text, err := w.Handle(job.ctx, job)
	if err != nil {
		failure = &pb.NackItem{Action: pb.NackAction_NACK_ACTION_RETRY, Error: err.Error()}
		if errors.Is(err, DeadLetter) {
			failure.Action = pb.NackAction_NACK_ACTION_DEAD_LETTER
		}
		return nil, failure
	}
	if !utf8.ValidString(text) { // As text it would spoil each call that it is part of.
		return &pb.Payload{Kind: &pb.Payload_Data{Data: []byte(text)}}, nil
	}
	return &pb.Payload{Kind: &pb.Payload_Text{Text: text}}, nil
}

// releaseWaiting gives back the jobs that have no handler.
func (w *Worker) releaseWaiting() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, job := range w.waiting {
		if !closed(job.gone) {
			w.release(job)
		}
	}
	w.waiting = nil
}

func (w *Worker) release(job *Job) {
	job.outcome = "released"
	w.nacks.add(job, &pb.NackItem{Receipt: job.Receipt, Action: pb.NackAction_NACK_ACTION_RELEASE})
}

// lose stops work on a job that is no longer this worker's. If its settle is under way, that answer decides.
func (w *Worker) lose(job *Job, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !closed(job.gone) && job.outcome == "" {
		w.drop(job, "lost", why)
	}
}

// drop ends a job, and its handler if that still runs. w.mu is locked.
func (w *Worker) drop(job *Job, count, why string) {
	delete(w.jobs, job.Receipt)
	close(job.gone)
	job.cancel()
	job.half.Stop()
	job.end.Stop()
	w.counts[count]++
	if count == "lost" {
		log.Printf("%s is lost: %s", job.Name(), why)
	}
}

// Name is for logs.
func (job *Job) Name() string { return job.Topic + "/" + job.Id }

// Save keeps a checkpoint for the next delivery. If the job is no longer this worker's, the handler's ctx ends.
func (job *Job) Save(text string) {
	sent, w := time.Now(), job.worker
	ctx, cancel := context.WithTimeout(job.ctx, w.Client.Timeout)
	defer cancel()
	item := &pb.ExtendItem{Receipt: job.Receipt, Checkpoint: &pb.Payload{Kind: &pb.Payload_Text{Text: text}}}
	failures, err := w.extends.call(ctx, []*pb.ExtendItem{item})
	if err == nil && len(failures) > 0 && failures[0].Error == unavailable {
		err = errors.New(failures[0].Message) // Its shard is down or full: extended without it, when it is time.
	}
	if err != nil {
		if job.ctx.Err() == nil {
			log.Printf("%s: checkpoint not saved: %v", job.Name(), err)
		}
		return
	}
	var failure pb.SettleError
	if len(failures) > 0 {
		failure = failures[0].Error
	}
	w.onAnswer("Extend", job, failure, nil, sent, false)
}

// --- leases ---

// extend also serves jobs that wait, or whose Ack is not through.
func (w *Worker) extend(jobs ...*Job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, job := range jobs {
		if !closed(job.gone) {
			job.extending = &pb.ExtendItem{Receipt: job.Receipt}
			w.extends.add(job, job.extending)
		}
	}
}

func (w *Worker) jobOf(receipt string) *Job {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.jobs[receipt]
}

func (w *Worker) extendAll() { w.extend(w.inHand()...) }

func (w *Worker) inHand() []*Job {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.jobs))
}

// --- calls ---

type failures = []*pb.SettleFailure

type pair[T proto.Message] struct {
	job  *Job
	item T
}

// gatherer sends the items of a few milliseconds in one call.
type gatherer[T proto.Message] struct {
	w     *Worker
	name  string
	call  func(context.Context, []T) (failures, error)
	pairs []pair[T]
}

// add takes an item. w.mu is locked.
func (g *gatherer[T]) add(job *Job, item T) {
	if len(g.pairs) == 0 {
		if len(g.w.jobs) > 1 {
			time.AfterFunc(gatherTime, g.flush)
		} else { // There is no other to wait for.
			go g.flush()
		}
	}
	g.pairs = append(g.pairs, pair[T]{job, item})
}

func (g *gatherer[T]) flush() {
	if g.name != "Extend" && closed(g.w.stopping) {
		<-g.w.streamsOver // Each settle would bring another job.
	}
	g.w.mu.Lock()
	pairs := g.pairs
	g.pairs = nil
	g.w.mu.Unlock()
	first, size := 0, 0
	for i, one := range pairs {
		if n := proto.Size(one.item) + 8; i > first && (i-first == itemsMax || size+n > bytesMax) {
			go g.send(pairs[first:i], noHistory())
			first, size = i, 0
		}
		size += proto.Size(one.item) + 8
	}
	g.send(pairs[first:], noHistory())
}

// history is that of items which are sent again.
type history struct {
	pauses   Pauses
	repeated bool
}

func noHistory() history { return history{pauses: *NewPauses(100*time.Millisecond, time.Second)} }

// send makes one call, and repeats it with the items that may succeed later. Each send has a goroutine of its own, so
// that nothing else waits.
func (g *gatherer[T]) send(pairs []pair[T], past history) {
	since := time.Now() // Begin of unexplained failures of one item, in a row.
	for ; len(pairs) > 0; past.repeated = true {
		sent := time.Now()
		items := make([]T, len(pairs))
		for i, one := range pairs {
			items[i] = one.item
		}
		ctx, cancel := context.WithTimeout(context.Background(), g.timeout(pairs))
		failures, err := g.call(ctx, items)
		cancel()
		answers := map[int32]pb.SettleError{}
		for _, failure := range failures {
			answers[failure.Index] = failure.Error
		}
		var delay time.Duration
		why := unavailableItem
		repeatable, reason, after := Explain(err)
		// Neither ringq nor an outage: one item may be the cause, as behind a proxy that limits bodies.
		unexplained := err != nil && reason == "" && !Passing(status.Code(err))
		if !unexplained || len(pairs) > 1 {
			since = time.Now()
		}
		if err != nil {
			invalid := reason != "" && status.Code(err) == codes.InvalidArgument
			if len(pairs) > 1 && (invalid || reason != "" && status.Code(err) == codes.PermissionDenied) {
				for i := range pairs { // Nothing was applied: one bad item must not spoil the others.
					go g.send(pairs[i:i+1], past)
				}
				return
			}
			stuck := unexplained && len(pairs) == 1 && time.Since(since) >= pairs[0].job.lease // Its Extends have passed meanwhile.
			if ack, ok := any(items[0]).(*pb.AckItem); ok && ack.Result != nil && (invalid || stuck) {
				log.Printf("%s: acked without its result: %v", pairs[0].job.Name(), err)
				ack.Result = nil // Finished work must not run again for its result.
				continue
			}
			delay, why = after, err
			for i := range pairs {
				answers[int32(i)] = refused
				if repeatable {
					answers[int32(i)] = unavailable
				}
			}
		}
		var again []pair[T]
		for i, one := range pairs {
			if answer := answers[int32(i)]; answer == unavailable {
				again = append(again, one)
			} else {
				g.w.onAnswer(g.name, one.job, answer, err, sent, past.repeated)
			}
		}
		if len(again) > 0 {
			pause := delay + past.pauses.Next()
			log.Printf("%s of %d jobs failed, repeated in %v: %v", g.name, len(again), pause.Round(time.Millisecond), why)
			time.Sleep(pause)
		}
		pairs = g.held(again)
		if half := len(pairs) / 2; half > 0 && unexplained && g.name != "Extend" { // Perhaps for its size, or for one item.
			past.repeated = true
			go g.send(pairs[half:], past)
			pairs = pairs[:half]
		}
	}
}

// timeout leaves time for a repeat of an Extend, whose late answer is worth nothing.
func (g *gatherer[T]) timeout(pairs []pair[T]) time.Duration {
	limit := g.w.Client.Timeout
	if g.name != "Extend" {
		return limit
	}
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	limit = min(limit, g.w.orphanGrace/2)
	for _, one := range pairs {
		limit = min(limit, time.Until(one.job.expires)/2)
	}
	return max(limit, 100*time.Millisecond)
}

// held returns the pairs whose jobs are still in hand; a settle ends with the lease.
func (g *gatherer[T]) held(pairs []pair[T]) (held []pair[T]) {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	for _, one := range pairs {
		if extend, ok := any(one.item).(*pb.ExtendItem); closed(one.job.gone) || ok && extend != one.job.extending {
			continue
		}
		if g.name != "Extend" && time.Now().After(one.job.expires) {
			g.w.drop(one.job, "lost", "its lease ended before it could be settled")
			continue
		}
		held = append(held, one)
	}
	return held
}

// onAnswer ends a job by the answer to its settle, or goes on with its lease by that to its Extend.
func (w *Worker) onAnswer(name string, job *Job, answer pb.SettleError, err error, sent time.Time, repeated bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	why := fmt.Sprintf("%s failed: %v", name, answer)
	if answer == refused {
		why = fmt.Sprintf("%s failed: %v", name, err)
	}
	switch {
	case closed(job.gone): // Lost or settled in the meantime.
	case name == "Extend" && answer == 0:
		job.expires = sent.Add(job.lease)
		job.half.Reset(time.Until(sent.Add(job.lease / 2)))
		job.end.Reset(time.Until(job.expires))
	case name == "Extend" && answer == refused:
		log.Printf("%s: %s", job.Name(), why) // Its lease goes on to its end.
	case name == "Extend":
		if job.outcome == "" { // If a settle is under way, its answer decides.
			w.drop(job, "lost", why)
		}
	case answer == 0 || answer == notFound && name == "Ack" && repeated:
		w.drop(job, job.outcome, "")
	default:
		w.drop(job, "lost", why)
	}
}
