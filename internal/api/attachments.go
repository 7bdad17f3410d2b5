package api

import (
	"context"
	"slices"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
)

// ListAttachments returns the attachments of pods and the debts of removed ones.
func (s *Server) ListAttachments(context.Context, *huskv1.ListAttachmentsRequest) (*huskv1.ListAttachmentsResponse, error) {
	owed := s.Debts()
	var list []*huskv1.Attachment
	for _, a := range s.Network.External().List() {
		out := attachment(a.Attachment)
		out.Network, out.Addresses = a.Attached.Network, texts(a.Attached.Addresses)
		list = append(list, out)
	}
	var sandboxes []sandbox.Status
	if s.Sandboxes != nil { // huskd isn't only another runtime's network
		sandboxes = s.Sandboxes.List()
	}
	for _, st := range sandboxes {
		gone := slices.ContainsFunc(owed, func(d pod.Debt) bool { return d.Attachment.Sandbox == st.ID })
		if st.State.Down() || gone {
			continue
		}
		for _, a := range st.Attached {
			out := attachment(st.Attachment)
			out.Network, out.Interface = a.Network, a.IfName
			for _, p := range a.Addresses {
				out.Addresses = append(out.Addresses, p.String())
			}
			list = append(list, out)
		}
	}
	for _, d := range owed {
		out := attachment(d.Attachment)
		out.Network, out.Owed = d.Network, true
		out.SinceNs, out.Tries, out.Error = d.Since.UnixNano(), int32(d.Tries), d.Error
		list = append(list, out)
	}
	return &huskv1.ListAttachmentsResponse{Attachments: list}, nil
}

func attachment(a pod.Attachment) *huskv1.Attachment {
	return &huskv1.Attachment{Interface: a.IfName, Namespace: a.Pod.Namespace, Name: a.Pod.Name, Sandbox: a.Sandbox, Netns: a.Netns}
}

// RetryDebts retries the DELs that are owed.
func (s *Server) RetryDebts(ctx context.Context, _ *huskv1.RetryDebtsRequest) (*huskv1.RetryDebtsResponse, error) {
	return &huskv1.RetryDebtsResponse{}, s.Config.RetryDebts(ctx)
}
