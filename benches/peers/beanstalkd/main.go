// The work of the comparison on beanstalkd, over its own protocol: no client library pipelines, and
// pipelining is the only thing that beanstalkd has for many jobs.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"

	"ringq/peers/harness"
)

const (
	// Connections that enqueue in bulk, and as many that consume.
	lanes = 4
	// Commands in one write.
	pipeline = 100
	// Seconds until a job that was not deleted comes again.
	ttr = 120
)

func main() {
	harness.Main(func(port string) (harness.Peer, error) {
		control, err := dial(port)
		return &peer{port, control}, err
	})
}

type peer struct {
	port    string
	control *conn
}

func (p *peer) Producer() (func([]byte) error, error) {
	conn, err := dial(p.port)
	return func(body []byte) error {
		conn.put(body)
		_, err := conn.reply("INSERTED")
		return err
	}, err
}

func (p *peer) Lanes() int { return lanes }

func (p *peer) Bulk(next func() []byte) error {
	conn, err := dial(p.port)
	if err != nil {
		return err
	}
	defer conn.Close()
	for body := next(); body != nil; {
		sent := 0
		for ; body != nil && sent < pipeline; body = next() {
			conn.put(body)
			sent++
		}
		for range sent {
			if _, err := conn.reply("INSERTED"); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *peer) Consume(deliver func([]byte)) (func(), error) {
	var conns []*conn
	stop := func() {
		for _, conn := range conns {
			conn.Close()
		}
	}
	for range lanes {
		conn, err := dial(p.port)
		if err != nil {
			return stop, err
		}
		conns = append(conns, conn)
		go conn.work(deliver)
	}
	return stop, nil
}

func (p *peer) Left() (int, error) {
	fmt.Fprint(p.control.out, "stats-tube default\r\n")
	words, err := p.control.reply("OK")
	if err != nil {
		return 0, err
	}
	stats, err := p.control.data(words[0])
	left := 0
	for _, line := range bytes.Split(stats, []byte("\n")) {
		var count int
		for _, state := range []string{"ready", "reserved", "delayed", "buried"} {
			if n, _ := fmt.Sscanf(string(line), "current-jobs-"+state+": %d", &count); n == 1 {
				left += count
			}
		}
	}
	return left, err
}

// conn is a connection with what was written and not flushed yet.
type conn struct {
	net.Conn
	in  *bufio.Reader
	out *bufio.Writer
}

func dial(port string) (*conn, error) {
	socket, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		return nil, err
	}
	return &conn{socket, bufio.NewReaderSize(socket, 1<<16), bufio.NewWriterSize(socket, 1<<16)}, nil
}

// work takes and deletes jobs until the connection is closed. It asks for twice as many at once as it
// got last, and waits for a single one when there was none: a reserve that waits holds up the deletes
// behind it.
func (c *conn) work(deliver func([]byte)) {
	for ask := 0; ; {
		if ask == 0 {
			fmt.Fprint(c.out, "reserve\r\n")
		}
		for range ask {
			fmt.Fprint(c.out, "reserve-with-timeout 0\r\n")
		}
		got := make([][]byte, 0, pipeline)
		for range max(ask, 1) {
			words, err := c.reply("RESERVED")
			if err == errEmpty {
				continue
			}
			if err != nil {
				return
			}
			body, err := c.data(words[1])
			if err != nil {
				return
			}
			deliver(body)
			got = append(got, words[0])
		}
		for _, id := range got {
			fmt.Fprintf(c.out, "delete %s\r\n", id)
		}
		for range got {
			if _, err := c.reply("DELETED"); err != nil {
				return
			}
		}
		ask = min(2*len(got), pipeline)
	}
}

func (c *conn) put(body []byte) {
	fmt.Fprintf(c.out, "put 0 0 %d %d\r\n%s\r\n", ttr, len(body), body)
}

var errEmpty = fmt.Errorf("no job is ready")

// reply reads an answer of this kind, and returns its other words.
func (c *conn) reply(kind string) ([][]byte, error) {
	if err := c.out.Flush(); err != nil {
		return nil, err
	}
	line, err := c.in.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	words := bytes.Fields(line)
	switch {
	case len(words) > 0 && string(words[0]) == kind:
		return words[1:], nil
	case len(words) > 0 && string(words[0]) == "TIMED_OUT":
		return nil, errEmpty
	}
	return nil, fmt.Errorf("beanstalkd answered %q instead of %s", line, kind)
}

// data reads this number of bytes and the end of their line.
func (c *conn) data(length []byte) ([]byte, error) {
	bytes, err := strconv.Atoi(string(length))
	if err != nil {
		return nil, err
	}
	data := make([]byte, bytes+2)
	_, err = io.ReadFull(c.in, data)
	return data[:bytes], err
}
