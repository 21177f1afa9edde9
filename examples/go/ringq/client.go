// Package ringq is the machinery of a worker, and the client that workers and producers share.
package ringq

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // Without it, grpc-go ignores healthCheckConfig.
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	pb "ringq/examples/go/ringq/stubs"
)

//go:embed stubs/service-config.json
var serviceConfig string // A copy of deploy/service-config.json: round robin over the servers, with health checks.

// Client calls ringq. Timeout is the deadline for each unary call.
type Client struct {
	pb.QueueServiceClient
	Timeout time.Duration
}

// Connect makes a client from the RINGQ_… settings. It does not wait for a connection; each call does.
func Connect() (*Client, error) {
	secure, token := insecure.NewCredentials(), bearer{token: strings.TrimSpace(Setting("TOKEN", ""))}
	if file := Setting("CA", ""); file != "" {
		pem, err := os.ReadFile(file)
		roots := x509.NewCertPool()
		if err == nil && !roots.AppendCertsFromPEM(pem) {
			err = errors.New("no certificate in " + file)
		}
		if err != nil {
			return nil, err
		}
		secure, token.secure = credentials.NewTLS(&tls.Config{RootCAs: roots}), true
	}
	servers := strings.Split(Setting("SERVER", "127.0.0.1:7700"), ",")
	target, list := "dns:///"+servers[0], manual.NewBuilderWithScheme("list")
	if len(servers) > 1 { // grpc-go takes no list in a target.
		var state resolver.State
		for _, server := range servers {
			host, _, err := net.SplitHostPort(server)
			if err != nil {
				return nil, err
			}
			state.Addresses = append(state.Addresses, resolver.Address{Addr: server, ServerName: host})
		}
		list.InitialState(state)
		target = "list:///ringq"
	}
	connection, err := grpc.NewClient(target,
		grpc.WithResolvers(list),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithTransportCredentials(secure),
		grpc.WithPerRPCCredentials(token),
		// A call waits for a connection, as a new one may be a moment away; its deadline ends that.
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(16<<20)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 5 * time.Second, Backoff: backoff.Config{
			BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
			MaxDelay: 2 * time.Second, // grpc-go adds up to 20 %; its default is two minutes.
		}}))
	if err != nil {
		return nil, err
	}
	return &Client{pb.NewQueueServiceClient(connection), Seconds("CALL_TIMEOUT", "10")}, nil
}

type bearer struct {
	token  string
	secure bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if b.token == "" {
		return nil, nil
	}
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

func (b bearer) RequireTransportSecurity() bool { return b.secure }

// Explain returns whether a failed call may be repeated, and the reason and the delay that the server gave. An error
// without a reason comes from a library or a proxy: the outcome is unknown, whatever its code.
func Explain(err error) (repeatable bool, reason string, delay time.Duration) {
	for _, detail := range status.Convert(err).Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			reason = detail.Reason
		case *errdetails.RetryInfo:
			delay = detail.RetryDelay.AsDuration()
		}
	}
	code := status.Code(err)
	return Passing(code) || reason == "" && code != codes.Unimplemented, reason, delay
}

// Passing returns whether a code is that of a failure that passes by itself, such as an outage.
func Passing(code codes.Code) bool {
	return code == codes.Unavailable || code == codes.ResourceExhausted || code == codes.DeadlineExceeded
}

// Pauses are random (full jitter) up to a bound that doubles; never quite 0, so that no loop spins.
type Pauses struct{ bound, longest time.Duration }

func (p *Pauses) Next() time.Duration {
	pause := p.bound/10 + rand.N(p.bound*9/10)
	p.bound = min(p.bound*2, p.longest)
	return pause
}

func NewPauses(first, longest time.Duration) *Pauses { return &Pauses{first, longest} }

// Setting returns the variable RINGQ_name, or the fallback if that is empty.
func Setting(name, fallback string) string {
	if value := os.Getenv("RINGQ_" + name); value != "" {
		return value
	}
	return fallback
}

// Number returns a setting that is a number; a wrong one ends the program.
func Number(name, fallback string) float64 {
	number, err := strconv.ParseFloat(Setting(name, fallback), 64)
	if err != nil {
		log.Fatal(fmt.Errorf("RINGQ_%s: %w", name, err))
	}
	return number
}

// Seconds returns a setting that is a duration in decimal seconds.
func Seconds(name, fallback string) time.Duration {
	return time.Duration(Number(name, fallback) * float64(time.Second))
}
