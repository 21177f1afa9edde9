// Calls AdminService/GetServerInfo once and prints one line: what came back, or the error as grpc-go has it.
// A token in RINGQ_TOKEN goes with the call.
//
// usage: client [-ca FILE [-cert FILE -key FILE]] HOST:PORT; without -ca the connection has no TLS
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

const method = "/ringq.v1.AdminService/GetServerInfo"

var (
	ca   = flag.String("ca", "", "file with the authority of the server")
	cert = flag.String("cert", "", "file with the certificate of this client")
	key  = flag.String("key", "", "file with its key")
)

func transport() (credentials.TransportCredentials, error) {
	if *ca == "" {
		return insecure.NewCredentials(), nil
	}
	pem, err := os.ReadFile(*ca)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", *ca)
	}
	if *cert != "" {
		pair, err := tls.LoadX509KeyPair(*cert, *key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config), nil
}

// call returns the length of the answer in bytes.
func call(address string) (int, error) {
	secured, err := transport()
	if err != nil {
		return 0, err
	}
	channel, err := grpc.NewClient(address, grpc.WithTransportCredentials(secured))
	if err != nil {
		return 0, err
	}
	defer channel.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if token := os.Getenv("RINGQ_TOKEN"); token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	// The request has no fields, and Empty keeps those of the answer as unknown ones: no generated code is needed.
	var info emptypb.Empty
	if err := channel.Invoke(ctx, method, &emptypb.Empty{}, &info); err != nil {
		return 0, fmt.Errorf("%s: %s", status.Code(err), status.Convert(err).Message())
	}
	length := proto.Size(&info)
	if length == 0 {
		return 0, errors.New("the answer is empty")
	}
	return length, nil
}

func main() {
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: client [-ca FILE [-cert FILE -key FILE]] HOST:PORT")
		os.Exit(2)
	}
	length, err := call(flag.Arg(0))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(length, "bytes")
}
