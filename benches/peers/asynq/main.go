// The work of the comparison on asynq. It has no call for many jobs, so in bulk is one by one, too. A
// server fetches one job at a time whatever its concurrency is, so there are several.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"ringq/peers/harness"
)

const (
	queue = "default"
	// Number of enqueue calls at once.
	lanes = 50
	// Number of servers, and concurrency of each.
	servers     = 4
	concurrency = 50
	// Poll interval of an idle server. The default of a second would be the latency.
	poll = 5 * time.Millisecond
)

func main() {
	harness.Main(func(port string) (harness.Peer, error) {
		redis := asynq.RedisClientOpt{Addr: "127.0.0.1:" + port, PoolSize: lanes}
		return &peer{redis, asynq.NewClient(redis), asynq.NewInspector(redis)}, nil
	})
}

type peer struct {
	redis     asynq.RedisClientOpt
	client    *asynq.Client
	inspector *asynq.Inspector
}

func (p *peer) Producer() (func([]byte) error, error) { return p.enqueue, nil }

func (p *peer) enqueue(body []byte) error {
	_, err := p.client.Enqueue(asynq.NewTask("job", body))
	return err
}

func (p *peer) Lanes() int { return lanes }

func (p *peer) Bulk(next func() []byte) error {
	for body := next(); body != nil; body = next() {
		if err := p.enqueue(body); err != nil {
			return err
		}
	}
	return nil
}

func (p *peer) Consume(deliver func([]byte)) (func(), error) {
	var running []*asynq.Server
	stop := func() {
		for _, server := range running {
			server.Shutdown()
		}
	}
	handler := asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		deliver(task.Payload())
		return nil
	})
	for range servers {
		server := asynq.NewServer(p.redis, asynq.Config{
			Concurrency: concurrency, TaskCheckInterval: poll, LogLevel: asynq.ErrorLevel,
		})
		if err := server.Start(handler); err != nil {
			return stop, err
		}
		running = append(running, server)
	}
	return stop, nil
}

func (p *peer) Left() (int, error) {
	info, err := p.inspector.GetQueueInfo(queue)
	if errors.Is(err, asynq.ErrQueueNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return info.Size, nil
}
