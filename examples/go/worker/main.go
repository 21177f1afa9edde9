// A worker: its handler, and the settings of the machinery in package ringq. Replace handle by your own.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"ringq/examples/go/ringq"
	pb "ringq/examples/go/ringq/stubs"
)

type plan struct {
	Steps     int     `json:"steps"`
	StepMs    float64 `json:"step_ms"`
	FailUntil int32   `json:"fail_until"`
	Dead      bool    `json:"dead"`
}

type checkpoint struct {
	Step int `json:"step"`
}

// handle works step by step, from the checkpoint on. It stops when ctx ends: the job is then no longer this worker's, or
// the worker stops.
func handle(ctx context.Context, job *ringq.Job) (result string, err error) {
	var plan plan
	if err := parse(job.Payload, &plan); err != nil {
		return "", fmt.Errorf("%w: the payload is not a JSON object of this kind: %w", ringq.DeadLetter, err)
	}
	if plan.Dead {
		return "", fmt.Errorf("%w: the payload asks for it", ringq.DeadLetter)
	}
	var from checkpoint
	if err := parse(job.Checkpoint, &from); err != nil {
		return "", fmt.Errorf("checkpoint: %w", err)
	}
	for step := from.Step + 1; step <= plan.Steps; step++ {
		select {
		case <-time.After(time.Duration(plan.StepMs * float64(time.Millisecond))): // The work.
		case <-ctx.Done():
			return "", ctx.Err()
		}
		if job.Attempt <= plan.FailUntil {
			return "", fmt.Errorf("attempt %d fails, as the payload asks", job.Attempt)
		}
		if step < plan.Steps {
			job.Save(fmt.Sprintf(`{"step":%d}`, step))
		}
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err := writeLedger(job, plan.Steps, from.Step); err != nil {
		return "", err
	}
	return fmt.Sprintf(`{"steps":%d,"by":"go"}`, plan.Steps), nil
}

func parse(payload *pb.Payload, into any) error {
	data := payload.GetData()
	if text := payload.GetText(); text != "" {
		data = []byte(text)
	}
	if len(data) == 0 {
		return nil
	}
	return json.Unmarshal(data, into)
}

// writeLedger is the effect of a job. A job can come twice: in a database, let the fence refuse the writer that lost its
// lease: UPDATE orders SET state = 'paid', fence = $1 WHERE id = $2 AND fence < $1
func writeLedger(job *ringq.Job, steps, from int) error {
	path := ringq.Setting("LEDGER", "")
	if path == "" {
		return nil
	}
	line, err := json.Marshal(struct {
		ID      string `json:"id"`
		Topic   string `json:"topic"`
		Fence   int64  `json:"fence"`
		Attempt int32  `json:"attempt"`
		Steps   int    `json:"steps"`
		From    int    `json:"from"`
		By      string `json:"by"`
	}{job.Id, job.Topic, job.Fence, job.Attempt, steps, from, "go"})
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.Write(append(line, '\n'))
	return err
}

func main() {
	log.SetFlags(0)
	client, err := ringq.Connect()
	if err != nil {
		log.Fatal(err)
	}
	host, _ := os.Hostname()
	worker := ringq.Worker{
		Client: client,
		Handle: handle,
		Request: &pb.StreamRequest{
			Topics:        strings.Split(ringq.Setting("TOPICS", "examples"), ","),
			WorkerId:      ringq.Setting("WORKER_ID", fmt.Sprintf("%s-%d", host, os.Getpid())),
			MaxInFlight:   int32(ringq.Number("CREDIT", "16")),
			LeaseDuration: durationpb.New(ringq.Seconds("LEASE", "30")),
		},
		Concurrency: int(ringq.Number("CONCURRENCY", "4")),
		Grace:       ringq.Seconds("GRACE", "25"),
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // A second signal ends the process at once.
	worker.Run(ctx)
}
