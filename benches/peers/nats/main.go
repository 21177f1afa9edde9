// The work of the comparison on NATS JetStream: a work-queue stream in a file, PublishAsync for many
// jobs, and a durable pull consumer that prefetches and acks every job by itself.
package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ringq/peers/harness"
)

const (
	subject = "jobs"
	// Connections that producers share, and as many that consume.
	lanes = 4
	// Jobs that a connection has published without an answer, and that a worker has prefetched.
	pending  = 4000
	prefetch = 1000
	// Time for which a publication waits for answers to others. The default is 200 ms, too short for a
	// machine that is busy with this.
	stall = 30 * time.Second
	// Time until a job that was not acked comes again.
	ackWait = 2 * time.Minute
)

func main() {
	harness.Main(open)
}

type peer struct {
	conns  []jetstream.JetStream
	turn   atomic.Int64
	failed chan error
}

func open(port string) (harness.Peer, error) {
	p := &peer{failed: make(chan error, 1)}
	for range lanes {
		conn, err := nats.Connect("127.0.0.1:" + port)
		if err != nil {
			return nil, err
		}
		js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(pending),
			jetstream.WithPublishAsyncErrHandler(p.note))
		if err != nil {
			return nil, err
		}
		p.conns = append(p.conns, js)
	}
	_, err := p.conns[0].CreateStream(context.Background(), jetstream.StreamConfig{
		Name: subject, Subjects: []string{subject},
		Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage,
	})
	return p, err
}

// note keeps the first error of an asynchronous publication.
func (p *peer) note(_ jetstream.JetStream, _ *nats.Msg, err error) {
	select {
	case p.failed <- err:
	default:
	}
}

func (p *peer) conn() jetstream.JetStream {
	return p.conns[int(p.turn.Add(1))%len(p.conns)]
}

func (p *peer) Producer() (func([]byte) error, error) {
	js := p.conn()
	return func(body []byte) error {
		_, err := js.Publish(context.Background(), subject, body)
		return err
	}, nil
}

func (p *peer) Lanes() int { return lanes }

func (p *peer) Bulk(next func() []byte) error {
	js := p.conn()
	for body := next(); body != nil; body = next() {
		if _, err := js.PublishAsync(subject, body, jetstream.WithStallWait(stall)); err != nil {
			return err
		}
	}
	<-js.PublishAsyncComplete()
	select {
	case err := <-p.failed:
		return err
	default:
		return nil
	}
}

func (p *peer) Consume(deliver func([]byte)) (func(), error) {
	config := jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
		MaxAckPending: lanes * prefetch,
	}
	var workers []jetstream.ConsumeContext
	stop := func() {
		for _, worker := range workers {
			worker.Drain()
			// Jobs of a worker that is gone would come again only after ackWait.
			<-worker.Closed()
		}
	}
	for _, js := range p.conns {
		consumer, err := js.CreateOrUpdateConsumer(context.Background(), subject, config)
		if err != nil {
			return stop, err
		}
		worker, err := consumer.Consume(func(message jetstream.Msg) {
			deliver(message.Data())
			if err := message.Ack(); err != nil {
				p.note(nil, nil, err)
			}
		}, jetstream.PullMaxMessages(prefetch))
		if err != nil {
			return stop, err
		}
		workers = append(workers, worker)
	}
	return stop, nil
}

// A work queue removes a job when it is acked.
func (p *peer) Left() (int, error) {
	stream, err := p.conns[0].Stream(context.Background(), subject)
	if err != nil {
		return 0, err
	}
	return int(stream.CachedInfo().State.Msgs), nil
}
