// A client of gRPC that finds its servers by xDS, as xds_client.py is, but by grpc-go, which has an implementation of
// xDS of its own.
//
// Its argument is the target. For each line on standard input, a number, it makes so many calls, and says as JSON how
// many of them each server has answered; calls that have failed stand under their status.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/xds"
)

// Messages are bytes as they are.
type plain struct{}

func (plain) Name() string                  { return "plain" }
func (plain) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (plain) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func who(connection *grpc.ClientConn) string {
	context, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var question, answer []byte
	err := connection.Invoke(context, "/test.Test/Who", &question, &answer,
		grpc.ForceCodec(plain{}), grpc.WaitForReady(true))
	if err != nil {
		// Shown if a test fails.
		log.Print(err)
		return err.Error()
	}
	return string(answer)
}

func main() {
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		calls, err := strconv.Atoi(lines.Text())
		if err != nil {
			log.Fatal(err)
		}
		counts := map[string]int{}
		for range calls {
			counts[who(connection)]++
		}
		answer, err := json.Marshal(counts)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(answer))
	}
}
