package lease_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/network/lease"
	"github.com/huskd/husk/internal/network/lease/leasetest"
	"github.com/huskd/husk/internal/network/peer/peertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFake(t *testing.T) {
	const ttl = 2 * time.Second
	leasetest.Run(t, ttl, func(*testing.T) lease.Store { return &leasetest.Fake{TTL: ttl} })
}

func TestRegistry(t *testing.T) {
	peertest.Run(t, func(*testing.T) peertest.Cluster { return &leasetest.Cluster{Store: &leasetest.Fake{TTL: time.Minute}} }, peertest.Options{})
}
