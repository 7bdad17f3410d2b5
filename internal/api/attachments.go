package api

import (
	"context"
	"slices"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/pod"
)

// ListAttachments tells what pods have of their networks, and what is owed.
func (s *Server) ListAttachments(context.Context, *huskv1.ListAttachmentsRequest) (*huskv1.ListAttachmentsResponse, error) {
	owed := s.Debts()
	var list []*huskv1.Attachment
	for _, st := range s.Sandboxes.List() {
		gone := slices.ContainsFunc(owed, func(d pod.Debt) bool { return d.Attachment.Sandbox == st.ID })
		if st.State.Down() || gone {
			continue
		}
		for _, a := range st.Attached {
			is := attachment(st.Attachment)
			is.Network, is.Interface = a.Network, a.IfName
			for _, p := range a.Addresses {
				is.Addresses = append(is.Addresses, p.String())
			}
			list = append(list, is)
		}
	}
	for _, d := range owed {
		is := attachment(d.Attachment)
		is.Network, is.Owed = d.Network, true
		is.SinceNs, is.Tries, is.Error = d.Since.UnixNano(), int32(d.Tries), d.Error
		list = append(list, is)
	}
	return &huskv1.ListAttachmentsResponse{Attachments: list}, nil
}

func attachment(a pod.Attachment) *huskv1.Attachment {
	return &huskv1.Attachment{Interface: a.IfName, Namespace: a.Pod.Namespace, Name: a.Pod.Name, Sandbox: a.Sandbox, Netns: a.Netns}
}

// RetryDebts tries to pay what is owed.
func (s *Server) RetryDebts(ctx context.Context, _ *huskv1.RetryDebtsRequest) (*huskv1.RetryDebtsResponse, error) {
	return &huskv1.RetryDebtsResponse{}, s.Config.RetryDebts(ctx)
}
