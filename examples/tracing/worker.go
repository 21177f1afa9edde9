// Takes the jobs of a topic and traces the work: for each delivery a `process TOPIC` span, and under it an `ack TOPIC` or
// `nack TOPIC` span, whose context goes to the server with the call. OTEL_* variables say where the spans go. A token in
// RINGQ_TOKEN goes with each call.
//
// usage: worker [-server HOST:PORT] [-parent] [-deliveries N] TOPIC
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	ringqv1 "ringq/examples/tracing/stubs/ringq/v1"
)

// Ack and Nack are safe to repeat with the same receipt.
const repeatSettles = `{"methodConfig": [{
	"name": [{"service": "ringq.v1.QueueService", "method": "Ack"}, {"service": "ringq.v1.QueueService", "method": "Nack"}],
	"timeout": "10s",
	"retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2,
		"retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]}}]}`

var (
	tracer     = otel.Tracer("ringq/examples/tracing")
	propagator = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
)

type worker struct {
	queue  ringqv1.QueueServiceClient
	topic  string
	id     string
	parent bool   // `process` spans are children of the producer's span, not only linked to it.
	limit  int64  // Deliveries to take before the worker ends; 0 = no end.
	taken  int64  // Deliveries so far.
	stream string // The id of the last stream: the next one continues it.
}

// handle does the work of a job. This one fails at the first attempt, so that the trace shows a retry.
func handle(ctx context.Context, job *ringqv1.Delivery) error {
	trace.SpanFromContext(ctx).AddEvent("work done")
	if job.Attempt == 1 {
		return errors.New("mail server is busy")
	}
	return nil
}

// process runs the handler in a span of its own and settles the job.
func (w *worker) process(ctx context.Context, job *ringqv1.Delivery) {
	producer := propagator.Extract(context.Background(), propagation.MapCarrier(job.Headers))
	if w.parent {
		ctx = trace.ContextWithRemoteSpanContext(ctx, trace.SpanContextFromContext(producer))
	}
	ctx, span := tracer.Start(ctx, "process "+job.Topic,
		trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithLinks(trace.LinkFromContext(producer)),
		trace.WithAttributes(attributes(job, "process", semconv.MessagingOperationTypeProcess)...))
	defer span.End()

	err := handle(ctx, job)
	if err == nil {
		w.settle(ctx, job, "ack", func(ctx context.Context) ([]*ringqv1.SettleFailure, error) {
			answer, err := w.queue.Ack(ctx, &ringqv1.AckRequest{Items: []*ringqv1.AckItem{{Receipt: job.Receipt}}})
			return answer.GetFailures(), err
		})
		return
	}
	failed(span, err)
	w.settle(ctx, job, "nack", func(ctx context.Context) ([]*ringqv1.SettleFailure, error) {
		item := &ringqv1.NackItem{Receipt: job.Receipt, Action: ringqv1.NackAction_NACK_ACTION_RETRY, Error: err.Error()}
		answer, err := w.queue.Nack(ctx, &ringqv1.NackRequest{Items: []*ringqv1.NackItem{item}})
		return answer.GetFailures(), err
	})
}

// settle sends an Ack or a Nack in a span of its own.
func (w *worker) settle(ctx context.Context, job *ringqv1.Delivery, name string,
	call func(context.Context) ([]*ringqv1.SettleFailure, error)) {
	ctx, span := tracer.Start(ctx, name+" "+job.Topic,
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attributes(job, name, semconv.MessagingOperationTypeSettle)...))
	defer span.End()

	fields := propagation.MapCarrier{}
	propagator.Inject(ctx, fields)
	failures, err := call(metadata.NewOutgoingContext(ctx, metadata.New(fields)))
	if err == nil && len(failures) > 0 { // The lease is over: the job may run elsewhere.
		err = errors.New(failures[0].Error.String())
	}
	if err != nil {
		failed(span, err)
		log.Printf("%s of %s failed: %v", name, job.Id, err)
		return
	}
	log.Printf("%s of %s, delivery %d", name, job.Id, job.Delivery)
}

func attributes(job *ringqv1.Delivery, name string, kind attribute.KeyValue) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("messaging.system", "ringq"),
		semconv.MessagingOperationName(name),
		kind,
		semconv.MessagingDestinationName(job.Topic),
		semconv.MessagingMessageID(job.Id),
		attribute.Int("messaging.ringq.delivery", int(job.Delivery)),
	}
}

func failed(span trace.Span, err error) {
	span.RecordError(err)
	span.SetStatus(codes.Error, err.Error())
	span.SetAttributes(semconv.ErrorType(err))
}

// take holds one stream until it ends. A job that is being worked on is settled even when ctx ends.
func (w *worker) take(ctx context.Context) error {
	stream, err := w.queue.Stream(ctx, &ringqv1.StreamRequest{
		Topics: []string{w.topic}, WorkerId: w.id, ContinuesStreamId: w.stream, MaxJobs: max(w.limit-w.taken, 0)})
	if err != nil {
		return err
	}
	for {
		message, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if message.Info != nil {
			w.stream = message.Info.StreamId
		}
		for _, job := range message.Deliveries {
			w.process(context.WithoutCancel(ctx), job)
			w.taken++
		}
	}
}

// run opens one stream after the other until ctx ends or all deliveries have come.
func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil && (w.limit == 0 || w.taken < w.limit) {
		if err := w.take(ctx); err != nil && ctx.Err() == nil {
			log.Printf("stream broke, trying again: %v", err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}
}

// bearer is a token that goes with each call; "" is none.
type bearer string

func (token bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if token == "" {
		return nil, nil
	}
	return map[string]string{"authorization": "Bearer " + string(token)}, nil
}

// RequireTransportSecurity is false: this example uses no TLS. With TLS return true, so that the token is never sent without.
func (token bearer) RequireTransportSecurity() bool { return false }

func connect(server string) (*grpc.ClientConn, error) {
	return grpc.NewClient(server,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithPerRPCCredentials(bearer(os.Getenv("RINGQ_TOKEN"))),
		grpc.WithDefaultServiceConfig(repeatSettles),
		// Notices a dead connection while the stream is silent, and tries again every few seconds.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 5 * time.Second,
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}}))
}

func main() {
	server := flag.String("server", "127.0.0.1:7700", "the ringq server")
	parent := flag.Bool("parent", false, "make process spans children of the producer's span")
	deliveries := flag.Int64("deliveries", 0, "end after so many; 0 = never")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	exporter, err := otlptracegrpc.New(ctx) // Reads OTEL_EXPORTER_OTLP_*.
	if err != nil {
		log.Fatal(err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter)) // Reads OTEL_SERVICE_NAME, _TRACES_SAMPLER, _BSP_*.
	otel.SetTracerProvider(provider)
	connection, err := connect(*server)
	if err != nil {
		log.Fatal(err)
	}
	w := worker{queue: ringqv1.NewQueueServiceClient(connection), topic: flag.Arg(0), parent: *parent, limit: *deliveries,
		id: fmt.Sprintf("go-%d", os.Getpid())}
	w.run(ctx)
	connection.Close()
	last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := provider.Shutdown(last); err != nil { // Sends the last spans.
		log.Print(err)
	}
}
