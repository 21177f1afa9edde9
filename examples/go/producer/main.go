// Enqueues COUNT jobs in batches. Each job has an id, or its call a request_id, that it keeps. By that a repeat is safe, but
// only while the first one's record lives: so the jobs have a retention, and repeats end long before it does.
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
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"ringq/examples/go/ringq"
	pb "ringq/examples/go/ringq/stubs"
)

const bytesMax = 3 << 20 // Of a call; the server takes 4 MiB.
const retention, repeats = time.Hour, 15 * time.Minute

type producer struct {
	client                      *ringq.Client
	ownIDs                      bool
	enqueued, unchanged, failed int
}

// enqueue sends one call, then those of its jobs again that may succeed later, until all have a final answer.
func (p *producer) enqueue(jobs []*pb.JobSpec) {
	pauses, requestID := ringq.NewPauses(100*time.Millisecond, 5*time.Second), random(16)
	end := time.Now().Add(repeats)
	for len(jobs) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), p.client.Timeout)
		answer, err := p.client.BatchEnqueue(ctx, &pb.BatchEnqueueRequest{Jobs: jobs, RequestId: requestID})
		cancel()
		repeatable, _, delay := ringq.Explain(err)
		if err == nil {
			jobs = p.sort(jobs, answer.Results, requestID)
		} else if log.Printf("BatchEnqueue of %d jobs failed: %v", len(jobs), err); !repeatable {
			p.failed += len(jobs)
			return
		}
		if len(jobs) > 0 && time.Now().Add(delay).After(end) {
			p.failed += len(jobs)
			log.Printf("%d jobs, from %q on: no final answer for %v, may be stored", len(jobs), jobs[0].Id, repeats)
			return
		}
		if len(jobs) > 0 {
			time.Sleep(delay + pauses.Next())
		}
	}
}

// sort counts final results, and returns the jobs to repeat.
func (p *producer) sort(jobs []*pb.JobSpec, results []*pb.EnqueueResult, requestID string) (again []*pb.JobSpec) {
	for i, result := range results[:min(len(results), len(jobs))] {
		job, reason := jobs[i], result.GetError().GetReason()
		unknown := reason == "OUTCOME_UNKNOWN" || reason == "DURABILITY_NOT_REACHED" || reason == "DEADLINE_EXCEEDED"
		code := codes.Code(result.GetError().GetCode())
		switch {
		case code == codes.OK && result.Outcome == pb.EnqueueOutcome_ENQUEUE_OUTCOME_UNCHANGED:
			p.unchanged++
			log.Printf("%s exists, its state is %v", result.Id, result.State) // A DEAD job will not run.
		case code == codes.OK:
			p.enqueued++
		case !ringq.Passing(code) || unknown && result.Id == "" && !p.ownIDs: // Without an id a repeat could make a second job.
			p.failed++
			log.Printf("%s not enqueued: %v", job.Id, result.Error)
		default:
			if result.Id != "" {
				job.Id = result.Id // The server made it.
			} else if job.Id == "" {
				job.Id = fmt.Sprintf("r=%s=%d", requestID, i) // By the contract, the server would make this one.
			}
			log.Printf("%s is repeated: %v", job.Id, result.Error)
			again = append(again, job)
		}
	}
	return again
}

func random(bytes int) string {
	data := make([]byte, bytes)
	rand.Read(data) // Never fails.
	return fmt.Sprintf("%x", data)
}

func main() {
	log.SetFlags(0)
	count, err := strconv.Atoi(strings.Join(os.Args[1:], " "))
	if err != nil {
		log.Fatal("usage: producer COUNT")
	}
	client, err := ringq.Connect()
	if err != nil {
		log.Fatal(err)
	}
	prefix, payload := ringq.Setting("PREFIX", random(6)), ringq.Setting("PAYLOAD", `{"steps":2,"step_ms":10}`)
	topic, _, _ := strings.Cut(ringq.Setting("TOPICS", "examples"), ",")
	if !utf8.ValidString(prefix) || !utf8.ValidString(payload) || !utf8.ValidString(topic) {
		log.Fatal("RINGQ_PREFIX, RINGQ_PAYLOAD and RINGQ_TOPICS must be UTF-8") // Else no call gets beyond the library.
	}
	batch, size := int(ringq.Number("BATCH", "100")), 0
	p := producer{client: client, ownIDs: prefix != "-"}
	var jobs []*pb.JobSpec
	for number := range count {
		job := &pb.JobSpec{Topic: topic, Payload: &pb.Payload{Kind: &pb.Payload_Text{Text: payload}},
			Retention: durationpb.New(retention),
			// W3C trace context, a new trace for each job; a program with OpenTelemetry injects its own context here.
			Headers: map[string]string{"traceparent": fmt.Sprintf("00-%s-%s-01", random(16), random(8))}}
		if p.ownIDs {
			job.Id = fmt.Sprintf("%s-%d", prefix, number)
		}
		if len(jobs) == batch || size+proto.Size(job) > bytesMax {
			p.enqueue(jobs)
			jobs, size = nil, 0
		}
		jobs, size = append(jobs, job), size+proto.Size(job)+8 // With the header of the field.
	}
	p.enqueue(jobs)
	fmt.Printf("enqueued=%d unchanged=%d failed=%d\n", p.enqueued, p.unchanged, p.failed)
	if p.failed > 0 {
		os.Exit(1)
	}
}
