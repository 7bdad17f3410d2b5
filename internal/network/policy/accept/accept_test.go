package accept

import (
	"fmt"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/huskd/husk/internal/network/policy"
)

// namespaced reads the spec of a NetworkPolicy default/p, and cluster that of a
// ClusterNetworkPolicy p.
func namespaced(t *testing.T, spec string) (policy.Policy, []Problem) {
	t.Helper()
	var p networkingv1.NetworkPolicy
	if err := yaml.Unmarshal([]byte("metadata: {name: p}\nspec:\n  "+strings.ReplaceAll(spec, "\n", "\n  ")), &p); err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	return Namespaced(&p)
}

func cluster(t *testing.T, spec string) (policy.Policy, []Problem) {
	t.Helper()
	var p ClusterNetworkPolicy
	if err := yaml.Unmarshal([]byte("metadata: {name: p}\nspec:\n  "+strings.ReplaceAll(spec, "\n", "\n  ")), &p); err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	return Cluster(&p)
}

// describe returns what a policy says: its subject, and a line for each direction and rule.
func describe(p policy.Policy) string {
	out := []string{describePods(&p.Subject)}
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		rules := p.Of(d)
		if rules == nil {
			continue
		}
		if len(rules.Rules) == 0 {
			out = append(out, string(d)+": nothing")
		}
		for _, r := range rules.Rules {
			line := fmt.Sprintf("%s: %s", r.Name, r.Action)
			for _, peer := range r.Peers {
				line += " " + describePeer(peer)
			}
			if r.Peers == nil {
				line += " all"
			} else if len(r.Peers) == 0 {
				line += " nobody"
			}
			for _, port := range r.Ports {
				line += fmt.Sprintf(" %d/%d-%d%s", port.Protocol, port.First, port.Last, port.Name)
			}
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

func describePeer(p policy.Peer) string {
	switch {
	case p.Pods != nil:
		return describePods(p.Pods)
	case p.Nodes != nil:
		return "nodes[" + p.Nodes.String() + "]"
	}
	out := p.Networks.Prefix.String()
	for _, e := range p.Networks.Except {
		out += "!" + e.String()
	}
	return out
}

func describePods(s *policy.PodSelector) string {
	namespaces := s.Namespace
	if namespaces == "" {
		namespaces = "[" + s.Namespaces.String() + "]"
		if namespaces == "[]" && !s.Namespaces.Empty() {
			namespaces = "[nothing]"
		}
	}
	return namespaces + "/[" + s.Pods.String() + "]"
}

func TestNamespaced(t *testing.T) {
	for name, c := range map[string]struct{ spec, want string }{
		"nothing set":                    {`{}`, "default/[]\ningress: nothing"},
		"no rules":                       {`podSelector: {matchLabels: {app: db}}`, "default/[app=db]\ningress: nothing"},
		"empty selector, empty rules":    {`{podSelector: {}, ingress: [], egress: []}`, "default/[]\ningress: nothing"},
		"egress rules imply egress":      {`egress: [{}]`, "default/[]\ningress: nothing\negress rule 1: accept all"},
		"egress alone":                   {`{policyTypes: [Egress]}`, "default/[]\negress: nothing"},
		"a direction that isn't a type":  {`{policyTypes: [Ingress], egress: [{}]}`, "default/[]\ningress: nothing"},
		"ingress rules without the type": {`{policyTypes: [Egress], ingress: [{}]}`, "default/[]\negress: nothing"},
		"both types":                     {`{policyTypes: [Ingress, Egress], ingress: [{}]}`, "default/[]\ningress rule 1: accept all\negress: nothing"},
		"empty from and ports":           {`ingress: [{from: [], ports: []}]`, "default/[]\ningress rule 1: accept all"},
		"two rules":                      {`ingress: [{}, {ports: [{port: 80}]}]`, "default/[]\ningress rule 1: accept all\ningress rule 2: accept all 6/80-80"},
		"podSelector":                    {`ingress: [{from: [{podSelector: {matchLabels: {a: b}}}]}]`, "default/[]\ningress rule 1: accept default/[a=b]"},
		"empty podSelector":              {`ingress: [{from: [{podSelector: {}}]}]`, "default/[]\ningress rule 1: accept default/[]"},
		"namespaceSelector":              {`ingress: [{from: [{namespaceSelector: {matchLabels: {a: b}}}]}]`, "default/[]\ningress rule 1: accept [a=b]/[]"},
		"empty namespaceSelector":        {`ingress: [{from: [{namespaceSelector: {}}]}]`, "default/[]\ningress rule 1: accept []/[]"},
		"both in one peer":               {`ingress: [{from: [{namespaceSelector: {matchLabels: {a: b}}, podSelector: {matchLabels: {c: d}}}]}]`, "default/[]\ningress rule 1: accept [a=b]/[c=d]"},
		"one each in two peers":          {`ingress: [{from: [{namespaceSelector: {matchLabels: {a: b}}}, {podSelector: {matchLabels: {c: d}}}]}]`, "default/[]\ningress rule 1: accept [a=b]/[] default/[c=d]"},
		"operators":                      {`podSelector: {matchExpressions: [{key: a, operator: In, values: [v, w]}, {key: b, operator: NotIn, values: [z]}, {key: c, operator: Exists}, {key: d, operator: DoesNotExist}]}`, "default/[a in (v,w),b notin (z),c,!d]\ningress: nothing"},
		"ipBlock":                        {`{policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16, 10.2.0.1/32]}}]}]}`, "default/[]\negress rule 1: accept 10.0.0.0/8!10.1.0.0/16!10.2.0.1/32"},
		"ipBlock with host bits":         {`ingress: [{from: [{ipBlock: {cidr: 10.1.2.3/8, except: [10.1.2.3/16]}}]}]`, "default/[]\ningress rule 1: accept 10.0.0.0/8!10.1.0.0/16"},
		"ipBlock with leading zeros":     {`ingress: [{from: [{ipBlock: {cidr: 010.0.0.0/8}}]}]`, "default/[]\ningress rule 1: accept 10.0.0.0/8"},
		"ipBlock of IPv6":                {`ingress: [{from: [{ipBlock: {cidr: "fd00::/8", except: ["fd01::/16"]}}]}]`, "default/[]\ningress rule 1: accept fd00::/8!fd01::/16"},
		"ipBlock of IPv4 in IPv6":        {`ingress: [{from: [{ipBlock: {cidr: "::ffff:10.0.0.0/104"}}]}]`, "default/[]\ningress rule 1: accept 10.0.0.0/8"},
		"ports":                          {`ingress: [{ports: [{}, {protocol: UDP}, {protocol: SCTP, port: 7}, {port: web}, {protocol: UDP, port: dns}, {port: 1, endPort: 65535}, {port: 80, endPort: 80}]}]`, "default/[]\ningress rule 1: accept all 6/0-65535 17/0-65535 132/7-7 6/0-0web 17/0-0dns 6/1-65535 6/80-80"},
	} {
		t.Run(name, func(t *testing.T) {
			p, problems := namespaced(t, c.spec)
			if got := describe(p); got != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
			if len(problems) > 0 {
				t.Errorf("problems: %v", problems)
			}
			if p.Name != "NetworkPolicy default/p" || p.Tier != policy.Namespaced {
				t.Errorf("name %q, tier %d", p.Name, p.Tier)
			}
		})
	}
}

func TestNamespacedMistakes(t *testing.T) {
	const closed = "default/[]\ningress rule 1: accept nobody"
	for name, c := range map[string]struct{ spec, problem, want string }{
		"protocol":                  {`ingress: [{ports: [{protocol: ICMP}]}]`, `spec.ingress[0].ports[0].protocol: "ICMP" is not supported: use TCP, UDP or SCTP`, closed},
		"protocol in lower case":    {`ingress: [{ports: [{protocol: tcp}]}]`, `spec.ingress[0].ports[0].protocol: "tcp" is not supported: use TCP, UDP or SCTP`, closed},
		"port 0":                    {`ingress: [{ports: [{port: 0}]}]`, `spec.ingress[0].ports[0].port: 0 is not a port: use 1 to 65535`, closed},
		"port 65536":                {`ingress: [{ports: [{port: 80}, {port: 65536}]}]`, `spec.ingress[0].ports[1].port: 65536 is not a port: use 1 to 65535`, closed},
		"a port in quotes":          {`ingress: [{ports: [{port: "80"}]}]`, `spec.ingress[0].ports[0].port: "80" is not the name of a port: use at most 15 lower-case letters, digits and -, with a letter in it; write a number without quotes`, closed},
		"endPort before port":       {`ingress: [{ports: [{port: 80, endPort: 79}]}]`, `spec.ingress[0].ports[0].endPort: 79 is before 80, where the range begins: exchange them`, closed},
		"endPort out of range":      {`ingress: [{ports: [{port: 80, endPort: 65536}]}]`, `spec.ingress[0].ports[0].endPort: 65536 is not a port: use 1 to 65535`, closed},
		"endPort without port":      {`ingress: [{ports: [{endPort: 80}]}]`, `spec.ingress[0].ports[0].endPort: port is not a number: set it to the first port of the range, or remove endPort`, closed},
		"endPort of a name":         {`ingress: [{ports: [{port: web, endPort: 80}]}]`, `spec.ingress[0].ports[0].endPort: port is not a number: set it to the first port of the range, or remove endPort`, closed},
		"an empty peer":             {`ingress: [{from: [{}]}]`, `spec.ingress[0].from[0]: is empty: set podSelector, namespaceSelector or ipBlock`, closed},
		"an empty peer of egress":   {`{policyTypes: [Egress], egress: [{}, {to: [{}]}]}`, `spec.egress[1].to[0]: is empty: set podSelector, namespaceSelector or ipBlock`, "default/[]\negress rule 1: accept all\negress rule 2: accept nobody"},
		"ipBlock and podSelector":   {`ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]}]`, `spec.ingress[0].from[0]: has an ipBlock and a selector: write two items`, closed},
		"cidr missing":              {`ingress: [{from: [{ipBlock: {}}]}]`, `spec.ingress[0].from[0].ipBlock.cidr: "" is not a network: write it like 10.0.0.0/8, 192.0.2.1/32 or fd00::/8`, closed},
		"cidr without a length":     {`ingress: [{from: [{ipBlock: {cidr: 192.0.2.1}}]}]`, `spec.ingress[0].from[0].ipBlock.cidr: "192.0.2.1" is not a network: write it like 10.0.0.0/8, 192.0.2.1/32 or fd00::/8`, closed},
		"except outside":            {`ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16, 11.0.0.0/16]}}]}]`, `spec.ingress[0].from[0].ipBlock.except[1]: 11.0.0.0/16 is not a smaller part of cidr 10.0.0.0/8: remove it, or correct one`, closed},
		"except is the cidr":        {`ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}}]}]`, `spec.ingress[0].from[0].ipBlock.except[0]: 10.0.0.0/8 is not a smaller part of cidr 10.0.0.0/8: remove it, or correct one`, closed},
		"except of another family":  {`ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: ["::/1"]}}]}]`, `spec.ingress[0].from[0].ipBlock.except[0]: ::/1 is not a smaller part of cidr 0.0.0.0/0: remove it, or correct one`, closed},
		"operator":                  {`ingress: [{from: [{podSelector: {matchExpressions: [{key: a, operator: in, values: [b]}]}}]}]`, `spec.ingress[0].from[0].podSelector.matchExpressions[0].operator: "in" is unknown: use In, NotIn, Exists or DoesNotExist`, closed},
		"values missing":            {`ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: a, operator: NotIn}]}}]}]`, `spec.ingress[0].from[0].namespaceSelector.matchExpressions[0].values: missing: NotIn needs one or more`, closed},
		"values of Exists":          {`ingress: [{from: [{podSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}]}]`, `spec.ingress[0].from[0].podSelector.matchExpressions[0].values: Exists has no values: remove them, or use In`, closed},
		"key":                       {`ingress: [{from: [{podSelector: {matchLabels: {"a b": c}}}]}]`, `spec.ingress[0].from[0].podSelector.matchLabels: "a b" is not the key of a label: ` + keyRule, closed},
		"value":                     {`ingress: [{from: [{podSelector: {matchLabels: {a: "-"}}}]}]`, `spec.ingress[0].from[0].podSelector.matchLabels: "-" is not the value of a label: ` + valueRule, closed},
		"the others stay":           {`ingress: [{from: [{}]}, {from: [{podSelector: {}}]}]`, `spec.ingress[0].from[0]: is empty: set podSelector, namespaceSelector or ipBlock`, closed + "\ningress rule 2: accept default/[]"},
		"one peer closes the rule":  {`ingress: [{from: [{podSelector: {}}, {}]}]`, `spec.ingress[0].from[1]: is empty: set podSelector, namespaceSelector or ipBlock`, closed},
		"subject":                   {`{podSelector: {matchExpressions: [{key: a, operator: Is}]}, ingress: [{}]}`, `spec.podSelector.matchExpressions[0].operator: "Is" is unknown: use In, NotIn, Exists or DoesNotExist`, closed},
		"policyTypes":               {`{policyTypes: [Ingress, egress], ingress: [{}]}`, `spec.policyTypes[1]: "egress" is unknown: use Ingress or Egress`, "default/[]\ningress rule 1: accept all\negress: nothing"},
		"a long value is shortened": {`policyTypes: [` + strings.Repeat("x", 100) + `]`, `spec.policyTypes[0]: "` + strings.Repeat("x", 64) + `"… is unknown: use Ingress or Egress`, "default/[]\ningress: nothing\negress: nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			p, problems := namespaced(t, c.spec)
			if got := describe(p); got != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
			if want := "NetworkPolicy default/p: " + c.problem; len(problems) != 1 || problems[0].String() != want {
				t.Errorf("problems:\n%v\nwant:\n%v", problems, want)
			}
		})
	}
}

// TestManyMistakes checks that the number of problems is bounded, and that all are counted.
func TestManyMistakes(t *testing.T) {
	_, problems := namespaced(t, `ingress: [`+strings.Repeat(`{from: [{}]},`, 1000)+`]`)
	if last := problems[len(problems)-1].String(); len(problems) != maxProblems+1 || last != "NetworkPolicy default/p: spec: has 980 more mistakes: correct the first 20" {
		t.Errorf("%d problems, the last: %s", len(problems), last)
	}
}

func TestCluster(t *testing.T) {
	const subject = "tier: Admin\npriority: 7\nsubject: {namespaces: {}}\n"
	for name, c := range map[string]struct{ spec, want string }{
		"no rules":            {subject, "[]/[]"},
		"empty rules":         {subject + "ingress: []", "[]/[]"},
		"subject is pods":     {`{tier: Baseline, subject: {pods: {namespaceSelector: {matchLabels: {a: b}}, podSelector: {matchLabels: {c: d}}}}}`, "[a=b]/[c=d]"},
		"subject is all pods": {`{tier: Baseline, subject: {pods: {}}}`, "[]/[]"},
		"names":               {subject + `ingress: [{name: "let monitoring in", action: Accept, from: [{namespaces: {}}]}, {action: Deny, from: [{namespaces: {}}]}]`, "[]/[]\nlet monitoring in: accept []/[]\ningress rule 2: deny []/[]"},
		"actions":             {subject + `egress: [{action: Pass, to: [{namespaces: {}}]}, {action: Accept, to: [{pods: {podSelector: {matchLabels: {a: b}}}}]}]`, "[]/[]\negress rule 1: pass []/[]\negress rule 2: accept []/[a=b]"},
		"egress peers":        {subject + `egress: [{action: Deny, to: [{nodes: {matchLabels: {a: b}}}, {networks: [10.0.0.0/8, "fd00::/8"]}, {pods: {}}]}]`, "[]/[]\negress rule 1: deny nodes[a=b] 10.0.0.0/8 fd00::/8 []/[]"},
		"protocols":           {subject + `ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 80}}}, {udp: {destinationPort: {range: {start: 1, end: 65535}}}}, {sctp: {destinationPort: {number: 7}}}, {destinationNamedPort: web}]}]`, "[]/[]\ningress rule 1: deny []/[] 6/80-80 17/1-65535 132/7-7 0/0-0web"},
		"egress to a name":    {subject + `egress: [{action: Deny, to: [{namespaces: {}}], protocols: [{destinationNamedPort: web}]}]`, "[]/[]\negress rule 1: deny []/[] 0/0-0web"},
	} {
		t.Run(name, func(t *testing.T) {
			p, problems := cluster(t, c.spec)
			if got := describe(p); got != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
			if len(problems) > 0 {
				t.Errorf("problems: %v", problems)
			}
			if want := map[bool]policy.Tier{true: policy.Admin, false: policy.Baseline}[p.Priority == 7]; p.Name != "ClusterNetworkPolicy p" || p.Tier != want {
				t.Errorf("name %q, tier %d", p.Name, p.Tier)
			}
		})
	}
}

func TestClusterMistakes(t *testing.T) {
	const subject = "tier: Admin\nsubject: {namespaces: {}}\n"
	const from = `from: [{namespaces: {}}]`
	const denied, accepted = "[]/[]\ningress rule 1: deny all", "[]/[]\ningress rule 1: accept nobody"
	for name, c := range map[string]struct{ spec, problem, want string }{
		"tier":                       {`{tier: admin, subject: {namespaces: {}}}`, `spec.tier: "admin" is unknown: use Admin or Baseline`, "[nothing]/[]"},
		"tier missing":               {`{subject: {namespaces: {}}}`, `spec.tier: "" is unknown: use Admin or Baseline`, "[nothing]/[]"},
		"subject missing":            {`{tier: Admin}`, `spec.subject: must have exactly one field: set namespaces or pods`, "[nothing]/[]"},
		"subject twice":              {`{tier: Admin, subject: {namespaces: {}, pods: {}}}`, `spec.subject: must have exactly one field: set namespaces or pods`, "[nothing]/[]"},
		"subject's operator":         {`{tier: Admin, subject: {namespaces: {matchExpressions: [{key: a, operator: "="}]}}}`, `spec.subject.namespaces.matchExpressions[0].operator: "=" is unknown: use In, NotIn, Exists or DoesNotExist`, "[nothing]/[]"},
		"subject has a new field":    {`{tier: Admin, subject: {namespaces: {}, nodes: {}}}`, `spec.subject.nodes: is unknown: remove it`, "[nothing]/[]"},
		"priority":                   {subject + `priority: 1001`, `spec.priority: 1001 is out of range: use 0 to 1000`, "[]/[]"},
		"action":                     {subject + `ingress: [{action: Allow, ` + from + `}]`, `spec.ingress[0].action: "Allow" is unknown: use Accept, Deny or Pass`, denied},
		"Accept from nobody":         {subject + `ingress: [{action: Accept}]`, `spec.ingress[0].from: missing: name one or more peers`, accepted},
		"Deny from nobody":           {subject + `ingress: [{action: Deny, from: []}]`, `spec.ingress[0].from: missing: name one or more peers`, denied},
		"Pass from nobody":           {subject + `ingress: [{action: Pass}]`, `spec.ingress[0].from: missing: name one or more peers`, denied},
		"ingress to":                 {subject + `ingress: [{action: Accept, to: [{namespaces: {}}]}]`, `spec.ingress[0].to: an ingress rule has no to: use from`, accepted},
		"an empty peer":              {subject + `ingress: [{action: Accept, from: [{namespaces: {}}, {}]}]`, `spec.ingress[0].from[1]: must have exactly one field: set namespaces or pods`, accepted},
		"an empty peer is denied":    {subject + `ingress: [{action: Deny, from: [{}]}]`, `spec.ingress[0].from[0]: must have exactly one field: set namespaces or pods`, denied},
		"two fields":                 {subject + `ingress: [{action: Deny, from: [{namespaces: {}, pods: {}}]}]`, `spec.ingress[0].from[0]: must have exactly one field: set namespaces or pods`, denied},
		"ingress networks":           {subject + `ingress: [{action: Deny, from: [{networks: [10.0.0.0/8]}]}]`, `spec.ingress[0].from[0]: an ingress rule has only peers that are pods: set namespaces or pods`, denied},
		"a new kind of peer":         {subject + `ingress: [{action: Deny, from: [{namespaces: {}, serviceAccounts: {}}]}]`, `spec.ingress[0].from[0].serviceAccounts: is unknown: remove it`, denied},
		"a new protocol":             {subject + `ingress: [{action: Deny, ` + from + `, protocols: [{tcp: {destinationPort: {number: 80}, flags: syn}}]}]`, `spec.ingress[0].protocols[0].tcp.flags: is unknown: remove it`, denied},
		"a new field of the spec":    {subject + `log: true`, `spec.log: is unknown and has no effect: remove it`, "[]/[]"},
		"protocols empty":            {subject + `ingress: [{action: Accept, ` + from + `, protocols: []}]`, `spec.ingress[0].protocols: is empty: name one or more, or remove the field to match all`, accepted},
		"protocol empty":             {subject + `ingress: [{action: Accept, ` + from + `, protocols: [{}]}]`, `spec.ingress[0].protocols[0]: must have exactly one field: set tcp, udp, sctp or destinationNamedPort`, accepted},
		"two protocols":              {subject + `ingress: [{action: Accept, ` + from + `, protocols: [{destinationNamedPort: web, tcp: {destinationPort: {number: 80}}}]}]`, `spec.ingress[0].protocols[0]: must have exactly one field: set tcp, udp, sctp or destinationNamedPort`, accepted},
		"protocol without port":      {subject + `ingress: [{action: Accept, ` + from + `, protocols: [{tcp: {}}]}]`, `spec.ingress[0].protocols[0].tcp.destinationPort: must have exactly one field: set number or range (1 to 65535 for all)`, accepted},
		"number and range":           {subject + `ingress: [{action: Accept, ` + from + `, protocols: [{udp: {destinationPort: {number: 1, range: {start: 1, end: 2}}}}]}]`, `spec.ingress[0].protocols[0].udp.destinationPort: must have exactly one field: set number or range (1 to 65535 for all)`, accepted},
		"number":                     {subject + `ingress: [{action: Accept, ` + from + `, protocols: [{tcp: {destinationPort: {number: -1}}}]}]`, `spec.ingress[0].protocols[0].tcp.destinationPort.number: -1 is not a port: use 1 to 65535`, accepted},
		"range of one":               {subject + `ingress: [{action: Accept, ` + from + `, protocols: [{tcp: {destinationPort: {range: {start: 80, end: 80}}}}]}]`, `spec.ingress[0].protocols[0].tcp.destinationPort.range.end: 80 is also start: use number`, accepted},
		"range backwards":            {subject + `ingress: [{action: Accept, ` + from + `, protocols: [{tcp: {destinationPort: {range: {start: 80, end: 79}}}}]}]`, `spec.ingress[0].protocols[0].tcp.destinationPort.range.end: 79 is before 80, where the range begins: exchange them`, accepted},
		"the name of a port":         {subject + `ingress: [{action: Accept, ` + from + `, protocols: [{destinationNamedPort: WEB}]}]`, `spec.ingress[0].protocols[0].destinationNamedPort: "WEB" is not the name of a port: use at most 15 lower-case letters, digits and -, with a letter in it; write a number without quotes`, accepted},
		"a rule's name too long":     {subject + `ingress: [{name: ` + strings.Repeat("n", 101) + `, action: Accept, ` + from + `}]`, `spec.ingress[0].name: "` + strings.Repeat("n", 64) + `"… is too long: use at most 100 characters`, "[]/[]\ningress rule 1: accept []/[]"},
		"domainNames of Accept":      {subject + `egress: [{name: out, action: Accept, to: [{networks: [10.0.0.0/8]}, {domainNames: [example.com]}]}]`, `spec.egress[0].to[1].domainNames: is not supported: use networks`, "[]/[]\nout: accept nobody"},
		"domainNames of Deny":        {subject + `egress: [{name: out, action: Deny, to: [{domainNames: [example.com]}]}]`, `spec.egress[0].to[0].domainNames: is not supported: use networks`, "[]/[]\nout: deny all"},
		"networks empty":             {subject + `egress: [{action: Accept, to: [{networks: []}]}]`, `spec.egress[0].to[0].networks: is empty: name one or more networks`, "[]/[]\negress rule 1: accept nobody"},
		"network":                    {subject + `egress: [{action: Deny, to: [{networks: [10.0.0.0/8, here]}]}]`, `spec.egress[0].to[0].networks[1]: "here" is not a network: write it like 10.0.0.0/8, 192.0.2.1/32 or fd00::/8`, "[]/[]\negress rule 1: deny all"},
		"a named port of a network":  {subject + `egress: [{action: Accept, to: [{namespaces: {}}, {networks: [10.0.0.0/8]}], protocols: [{destinationNamedPort: web}]}]`, `spec.egress[0].protocols[0].destinationNamedPort: only pods have named ports: use tcp, udp or sctp, or a rule of its own for the peers that are not pods`, "[]/[]\negress rule 1: accept nobody"},
		"the selector of a peer":     {subject + `egress: [{action: Pass, to: [{nodes: {matchExpressions: [{key: a, operator: In}]}}]}]`, `spec.egress[0].to[0].nodes.matchExpressions[0].values: missing: In needs one or more`, "[]/[]\negress rule 1: deny all"},
		"a field in the wrong case":  {subject + `ingress: [{action: Deny, ` + from + `, Protocols: []}]`, `spec.ingress[0].Protocols: is unknown: remove it`, denied},
		"a mistake in only one rule": {subject + `egress: [{action: Accept, to: [{}]}, {action: Pass, to: [{namespaces: {}}]}]`, `spec.egress[0].to[0]: must have exactly one field: set namespaces, pods, nodes or networks`, "[]/[]\negress rule 1: accept nobody\negress rule 2: pass []/[]"},
	} {
		t.Run(name, func(t *testing.T) {
			p, problems := cluster(t, c.spec)
			if got := describe(p); !strings.HasPrefix(got, c.want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
			if want := "ClusterNetworkPolicy p: " + c.problem; len(problems) != 1 || problems[0].String() != want {
				t.Errorf("problems:\n%v\nwant:\n%v", problems, want)
			}
		})
	}
}

// TestBounds checks that a direction with too many rules fails closed, and the other one stays.
func TestBounds(t *testing.T) {
	networks := func(n int) string {
		return strings.Repeat(`{from: [{ipBlock: {cidr: 192.0.2.0/24}}]},`, n)
	}
	ports := func(n int) (out string) {
		for i := range n {
			out += fmt.Sprintf(`{port: %d},`, i+1)
		}
		return out
	}
	for name, c := range map[string]struct {
		ingress string
		closed  bool
	}{
		"as many rules as there may be":  {networks(maxNetworkRules), false},
		"one more":                       {networks(maxNetworkRules + 1), true},
		"rules without networks":         {strings.Repeat(`{from: [{podSelector: {}}]},`, 2*maxNetworkRules), false},
		"many networks in a rule":        {`{from: [` + strings.Repeat(`{ipBlock: {cidr: 192.0.2.0/24}},`, 3*maxNetworkRules) + `]}`, false},
		"few combinations":               {networks(500) + `{ports: [` + ports(2000) + `]}`, false},
		"combinations that are too many": {networks(501) + `{ports: [` + ports(2000) + `]}`, true},
	} {
		p, problems := namespaced(t, `{policyTypes: [Ingress, Egress], ingress: [`+c.ingress+`], egress: [{}]}`)
		if (len(problems) == 1) != c.closed || len(problems) > 1 {
			t.Errorf("%s: problems %v", name, problems)
		}
		for _, r := range p.Ingress.Rules {
			if empty := r.Peers != nil && len(r.Peers) == 0; empty != c.closed {
				t.Errorf("%s: rule %+v", name, r)
				break
			}
		}
		if len(p.Egress.Rules) != 1 || p.Egress.Rules[0].Peers != nil {
			t.Errorf("%s: egress is %+v", name, p.Egress)
		}
	}
}
