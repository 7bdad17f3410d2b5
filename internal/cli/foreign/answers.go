package foreign

import "strings"

// The reasons that several commands share.
const (
	noBuild     = "husk doesn't build images: build them with buildah or docker, and load them by husk image load"
	noEdit      = "change the manifest, and run it again by husk run FILE"
	noCluster   = "husk acts on one node: for a cluster, use kubectl with the API server that huskd has joined"
	noContainer = "husk has no containers outside of pods"
)

// table has a line for each command: its tools, separated by commas, the command, and after "=>"
// what Husk has. After "!" is the reason if Husk has nothing, or what to know about it.
const table = `
kubectl        | get                   => husk ps ! husk objects, husk rollout status and husk volume ls list the rest
kubectl        | get all               => husk ps -a
kubectl        | get pods              => husk ps
kubectl        | get pod               => husk ps ! husk inspect NAME shows one in full
kubectl        | get po                => husk ps
kubectl        | get deployments       => husk rollout status
kubectl        | get deployment        => husk rollout status
kubectl        | get deploy            => husk rollout status
kubectl        | get replicasets       => husk rollout status
kubectl        | get rs                => husk rollout status
kubectl        | get statefulsets      => husk rollout status
kubectl        | get sts               => husk rollout status
kubectl        | get daemonsets        => husk rollout status
kubectl        | get ds                => husk rollout status
kubectl        | get jobs              => husk rollout status
kubectl        | get job               => husk rollout status
kubectl        | get cronjobs          => husk rollout status
kubectl        | get cj                => husk rollout status
kubectl        | get configmaps        => husk objects
kubectl        | get configmap         => husk objects
kubectl        | get cm                => husk objects
kubectl        | get secrets           => husk objects
kubectl        | get secret            => husk objects
kubectl        | get namespaces        => husk objects
kubectl        | get ns                => husk objects
kubectl        | get networkpolicies   => husk net policy
kubectl        | get networkpolicy     => husk net policy
kubectl        | get netpol            => husk net policy
kubectl        | get persistentvolumeclaims => husk volume ls
kubectl        | get pvc               => husk volume ls
kubectl        | get persistentvolumes => husk volume ls
kubectl        | get pv                => husk volume ls
kubectl        | get nodes             => husk net nodes
kubectl        | get node              => husk net nodes
kubectl        | get no                => husk net nodes
kubectl        | get events            => husk events
kubectl        | get ev                => husk events
kubectl        | replace               => husk run --replace FILE
kubectl        | edit                  => ! {noEdit}
kubectl        | patch                 => ! {noEdit}
kubectl        | set                   => ! {noEdit}
kubectl        | label                 => ! {noEdit}
kubectl        | annotate              => ! {noEdit}
kubectl        | autoscale             => husk scale WORKLOAD REPLICAS
kubectl        | expose                => ! declare a Service in a manifest, or use husk port-forward
kubectl        | explain               => ! docs/reference/manifest.md lists the fields that Husk honours
kubectl        | rollout restart       => husk restart WORKLOAD
kubectl        | rollout history       => ! husk keeps no former versions of a workload: keep the manifests in git
kubectl        | rollout undo          => ! husk keeps no former versions of a workload: run its former manifest
kubectl        | rollout pause         => ! {noEdit}
kubectl        | rollout resume        => ! {noEdit}
kubectl        | proxy                 => husk port-forward POD PORT
kubectl        | cluster-info          => husk net nodes
kubectl        | api-resources         => ! docs/reference/manifest.md lists the kinds that Husk honours
kubectl        | api-versions          => ! docs/reference/manifest.md lists the kinds that Husk honours
kubectl        | config                => ! husk needs no kubeconfig: --socket names the huskd to talk to
kubectl        | auth                  => ! access to huskd's socket is what permits a user everything
kubectl        | drain                 => ! {noCluster}
kubectl        | cordon                => ! {noCluster}
kubectl        | uncordon              => ! {noCluster}
kubectl        | taint                 => ! {noCluster}
kubectl        | certificate           => ! {noCluster}
kubectl        | kustomize             => ! render manifests by kustomize, and pipe them into husk run -
kubectl        | diff                  => ! run the manifest: husk run says what is unchanged, and what needs --replace
docker,podman  | pod                   => husk ps
docker,podman  | pod ps                => husk ps
docker,podman  | pod ls                => husk ps
docker,podman  | pod create            => husk run IMAGE
docker,podman  | pod rm                => husk rm NAME
docker,podman  | pod stop              => husk stop NAME
docker,podman  | pod inspect           => husk inspect NAME
docker,podman  | pod logs              => husk logs NAME
docker,podman  | pod top               => husk top NAME
docker,podman  | pod stats             => husk top NAME
docker,podman  | play                  => husk run FILE
docker,podman  | play kube             => husk run FILE
docker,podman  | kube                  => husk run FILE
docker,podman  | kube play             => husk run FILE
docker,podman  | kube down             => husk rm -f FILE
docker,podman  | kube generate         => husk generate NAME
docker,podman  | generate systemd      => ! huskd starts pods at boot: put manifests into its manifests directory
docker         | compose               => husk run FILE ! with a manifest: kompose convert writes one
docker         | compose up            => husk run FILE ! with a manifest: kompose convert writes one
docker         | compose down          => husk rm -f FILE
docker         | compose ps            => husk ps
docker         | compose logs          => husk logs NAME
docker         | compose exec          => husk exec NAME -- COMMAND
docker         | stack                 => husk run FILE
docker         | service               => husk scale WORKLOAD REPLICAS
docker         | swarm                 => ! {noCluster}
docker         | node                  => ! {noCluster}
docker         | context               => ! --socket names the huskd to talk to
docker         | buildx                => ! {noBuild}
docker,podman  | build                 => ! {noBuild}
docker,podman  | commit                => ! {noBuild}
docker,podman  | image build           => ! {noBuild}
docker,podman  | import                => ! {noBuild}
docker,podman  | image import          => husk image load FILE
docker,podman  | push                  => husk image push IMAGE
docker,podman  | search                => ! search at the registry: husk pulls an image by its whole name
docker,podman  | images                => husk image ls
docker,podman  | pull                  => husk image pull IMAGE
docker,podman  | rmi                   => husk image rm IMAGE
docker,podman  | load                  => husk image load FILE
docker,podman  | image list            => husk image ls
docker,podman  | image remove          => husk image rm IMAGE
docker,podman  | image delete          => husk image rm IMAGE
docker,podman  | container             => husk ps --containers
docker,podman  | container ls          => husk ps --containers
docker,podman  | container ps          => husk ps --containers
docker,podman  | container list        => husk ps --containers
docker,podman  | container run         => husk run IMAGE
docker,podman  | container rm          => husk rm NAME
docker,podman  | container stop        => husk stop NAME
docker,podman  | container logs        => husk logs NAME
docker,podman  | container exec        => husk exec NAME -- COMMAND
docker,podman  | container inspect     => husk inspect NAME
docker,podman  | ls                    => husk ps
docker,podman  | list                  => husk ps
docker,podman  | rename                => ! a pod keeps its name: run it under another, and remove this one
docker,podman  | update                => ! {noEdit}
docker,podman  | port                  => husk describe POD
docker,podman  | stats                 => husk top
docker,podman  | network               => husk net ls
docker,podman  | network ls            => husk net ls
docker,podman  | network inspect       => husk net status NETWORK
docker,podman  | network create        => ! write a CNI configuration: see docs/reference/cni.md
docker,podman  | network rm            => ! remove the network's CNI configuration
docker,podman  | network connect       => ! a pod's networks are in its manifest
docker,podman  | network prune         => husk net gc NETWORK
docker,podman  | volume create         => ! declare a PersistentVolumeClaim in a manifest
docker,podman  | volume list           => husk volume ls
docker,podman  | volume prune          => husk volume rm NAME
docker,podman  | secret                => husk objects ! declare a Secret in a manifest
docker,podman  | secret ls             => husk objects
docker,podman  | secret create         => ! declare a Secret in a manifest
docker,podman  | machine               => ! husk runs on Linux itself
docker,podman  | unshare               => ! huskd runs as root; pods have user namespaces with hostUsers: false
docker,podman  | healthcheck           => husk describe POD
docker,podman  | auto-update           => ! change the image in the manifest, and run it again
docker,podman  | system events         => husk events
docker,podman  | save                  => husk image save IMAGE
docker,podman  | export                => husk exec POD -- tar -cf - /
docker,podman  | checkpoint            => ! crictl checkpoint does it through huskd's CRI socket
docker,podman  | pause                 => ! husk doesn't pause containers: husk stop ends a pod
docker,podman  | unpause               => ! husk doesn't pause containers
docker,podman  | init                  => ! {noBuild}
docker,podman  | mount                 => ! husk inspect shows where a container's files are
docker,podman  | history               => husk image history IMAGE
docker,podman  | tag                   => husk image tag IMAGE NAME
crictl         | pods                  => husk ps
crictl         | runp                  => husk run FILE
crictl         | stopp                 => husk stop NAME
crictl         | rmp                   => husk rm NAME
crictl         | inspectp              => husk inspect NAME
crictl         | statsp                => husk top NAME
crictl         | img                   => husk image ls
crictl         | imagefsinfo           => husk system df
crictl         | inspecti              => husk image inspect IMAGE
crictl         | metricsp              => ! huskd serves metrics over HTTP: see docs/observing.md
crictl         | runtime-config        => husk info
ctr            | c                     => husk ps --containers
ctr            | containers            => husk ps --containers
ctr            | c ls                  => husk ps --containers
ctr            | containers ls         => husk ps --containers
ctr            | c rm                  => husk rm NAME
ctr            | containers rm         => husk rm NAME
ctr            | c info                => husk inspect NAME
ctr            | t                     => husk ps --containers
ctr            | tasks                 => husk ps --containers
ctr            | task                  => husk ps --containers
ctr            | t ls                  => husk ps --containers
ctr            | t exec                => husk exec NAME -- COMMAND
ctr            | task exec             => husk exec NAME -- COMMAND
ctr            | t kill                => husk kill NAME
ctr            | task kill             => husk kill NAME
ctr            | i                     => husk image ls
ctr            | i ls                  => husk image ls
ctr            | i pull                => husk image pull IMAGE
ctr            | i import              => husk image load FILE
ctr            | i rm                  => husk image rm IMAGE
ctr            | images ls             => husk image ls
ctr            | images pull           => husk image pull IMAGE
ctr            | images import         => husk image load FILE
ctr            | images rm             => husk image rm IMAGE
ctr            | images tag            => ! husk keeps the names with which images were pulled or loaded
ctr            | namespaces            => ! husk has no namespaces of containerd: those of pods are in husk ps
ctr            | ns                    => ! husk has no namespaces of containerd: those of pods are in husk ps
ctr            | snapshots             => ! huskd's layers are its own: husk image ls shows the images
ctr            | content               => ! huskd's layers are its own: husk image ls shows the images
ctr            | leases                => ! huskd removes what nothing uses by itself
ctr            | plugins               => husk doctor
ctr            | shim                  => ! {noContainer}
`

var reasons = strings.NewReplacer("{noBuild}", noBuild, "{noEdit}", noEdit,
	"{noCluster}", noCluster, "{noContainer}", noContainer)

// answers are those of the table by the words of the command, and longest is the largest number of
// words of one.
var answers, longest = parse(reasons.Replace(table))

// parse panics if two lines have the same command, which a test would show.
func parse(text string) (map[string]Answer, int) {
	all, longest := map[string]Answer{}, 0
	for line := range strings.Lines(strings.TrimSpace(text)) {
		tools, rest, _ := strings.Cut(line, "|")
		words, answer, _ := strings.Cut(rest, "=>")
		command, why, _ := strings.Cut(answer, "!")
		tool, _, _ := strings.Cut(strings.TrimSpace(tools), ",")
		words = strings.TrimSpace(words)
		if _, twice := all[words]; twice {
			panic("two answers to " + words)
		}
		all[words] = Answer{Typed: tool + " " + words, Husk: strings.TrimSpace(command), Why: strings.TrimSpace(why)}
		longest = max(longest, len(strings.Fields(words)))
	}
	return all, longest
}
