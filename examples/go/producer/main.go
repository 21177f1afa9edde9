// Enqueues COUNT jobs in batches. A repeat is safe: each job has an id, or its call a request_id, that it keeps.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"ringq/examples/go/ringq"
	pb "ringq/examples/go/ringq/stubs"
)

const bytesMax = 3 << 20 // Of a call; the server takes 4 MiB.

type producer struct {
	client                      *ringq.Client
	ownIDs                      bool
	enqueued, unchanged, failed int
}

func random(bytes int) string {
	data := make([]byte, bytes)
	rand.Read(data) // Never fails.
	return fmt.Sprintf("%x", data)
}

// enqueue sends one call, then those of its jobs again that may succeed later, until all have a final answer.
func (p *producer) enqueue(jobs []*pb.JobSpec) {
	pauses, requestID := ringq.NewPauses(100*time.Millisecond, 5*time.Second), random(16)
	for len(jobs) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), p.client.Timeout)
		answer, err := p.client.BatchEnqueue(ctx, &pb.BatchEnqueueRequest{Jobs: jobs, RequestId: requestID})
		cancel()
		again, unnamed := jobs, []*pb.JobSpec(nil)
		repeatable, _, delay := ringq.Explain(err)
		switch {
		case err == nil:
			again, unnamed = p.sort(jobs, answer.Results)
		case !repeatable:
			p.failed += len(jobs)
			log.Printf("%d jobs not enqueued: %v", len(jobs), err)
			return
		default:
			log.Printf("BatchEnqueue failed, repeated: %v", err)
		}
		if len(again)+len(unnamed) > 0 {
			time.Sleep(delay + pauses.Next())
		}
		// With a new request_id: by the old one and another index the server would make the id of another job.
		p.enqueue(unnamed)
		jobs = again
	}
}

// sort counts final results. It returns the jobs to repeat: those with an id, and those that have none.
func (p *producer) sort(jobs []*pb.JobSpec, results []*pb.EnqueueResult) (again, unnamed []*pb.JobSpec) {
	for i, result := range results[:min(len(results), len(jobs))] {
		job, failure := jobs[i], result.Error
		if failure == nil {
			if result.Outcome == pb.EnqueueOutcome_ENQUEUE_OUTCOME_UNCHANGED {
				p.unchanged++
			} else {
				p.enqueued++
			}
			switch result.State {
			case pb.JobState_JOB_STATE_DEAD, pb.JobState_JOB_STATE_EXPIRED, pb.JobState_JOB_STATE_CANCELLED:
				log.Printf("%s exists and will not run: %v", result.Id, result.State)
			}
			continue
		}
		unknown := failure.Reason == "OUTCOME_UNKNOWN" || failure.Reason == "DURABILITY_NOT_REACHED" || failure.Reason == "DEADLINE_EXCEEDED"
		code := codes.Code(failure.Code)
		repeatable := code == codes.Unavailable || code == codes.ResourceExhausted || code == codes.DeadlineExceeded
		if !repeatable || unknown && result.Id == "" && !p.ownIDs { // Without an id a repeat could make a second job.
			p.failed++
			log.Printf("not enqueued: %s: %s %s", job.Id, failure.Reason, failure.Message)
			continue
		}
		log.Printf("repeated: %s: %s %s", job.Id, failure.Reason, failure.Message)
		if result.Id != "" {
			job.Id = result.Id // Also an id that the server made.
		}
		if job.Id != "" {
			again = append(again, job)
		} else {
			unnamed = append(unnamed, job)
		}
	}
	return again, unnamed
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: producer COUNT")
	}
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal("usage: producer COUNT")
	}
	client, err := ringq.Connect()
	if err != nil {
		log.Fatal(err)
	}
	prefix, payload := ringq.Setting("PREFIX", random(6)), ringq.Setting("PAYLOAD", `{"steps":2,"step_ms":10}`)
	topic, _, _ := strings.Cut(ringq.Setting("TOPICS", "examples"), ",")
	batch, size := int(ringq.Number("BATCH", "100")), 0
	p := producer{client: client, ownIDs: prefix != "-"}
	var jobs []*pb.JobSpec
	for number := range count {
		job := &pb.JobSpec{Topic: topic, Payload: &pb.Payload{Kind: &pb.Payload_Text{Text: payload}},
			// W3C trace context, a new trace for each job; a program with OpenTelemetry injects its own context here.
			Headers: map[string]string{"traceparent": fmt.Sprintf("00-%s-%s-01", random(16), random(8))}}
		if p.ownIDs {
			job.Id = fmt.Sprintf("%s-%d", prefix, number)
		}
		if len(jobs) == batch || size+proto.Size(job) > bytesMax {
			p.enqueue(jobs)
			jobs, size = nil, 0
		}
		jobs = append(jobs, job)
		size += proto.Size(job) + 8 // With the header of the field.
	}
	p.enqueue(jobs)
	fmt.Printf("enqueued=%d unchanged=%d failed=%d\n", p.enqueued, p.unchanged, p.failed)
	if p.failed > 0 {
		os.Exit(1)
	}
}
