package foreign

import (
	"fmt"
	"strings"
)

// Line is a command line of another tool and what it is in Husk.
type Line struct {
	Typed string
	// Husk is the line for the same purpose; empty if Husk has none.
	Husk string
}

// Lines are the everyday command lines of each tool.
var Lines = lines(everyday)

// everyday has a line for each command line: the tool's, "=>" and Husk's. "=" stands for the tool's
// line with husk in place of the tool's name.
const everyday = `
docker run nginx => =
docker run -d --name web -p 8080:80 nginx => =
docker run --rm -it alpine sh => =
docker run --rm -v ./data:/data -e A=b alpine ls -l /data => =
docker run -d --restart=always --cpus 0.5 --memory 512m --network host nginx => =
docker run --user 1000:1000 --workdir /srv --entrypoint sh --pull always alpine -c ls => =
docker --version => =
docker ps => =
docker ps -a => =
docker ps -aq => =
docker ps --format {{.Names}} => =
docker container ls => husk ps --containers
docker stop web => =
docker stop -t 5 web => =
docker kill web => =
docker kill -s HUP web => =
docker start web => =
docker restart web => =
docker rm web => =
docker rm -f web => =
docker logs web => =
docker logs -f web => =
docker logs --tail 20 web => =
docker logs -n 20 web => =
docker logs --since 10m web => =
docker logs -f --timestamps web => =
docker exec -it web sh => =
docker attach web => =
docker inspect web => =
docker top web => =
docker stats => husk top
docker stats web => husk top web
docker stats --no-stream => husk top --no-stream
docker port web => husk describe web
docker events => =
docker images => husk image ls
docker image ls => =
docker pull quay.io/me/web:1 => husk image pull quay.io/me/web:1
docker image pull quay.io/me/web:1 => =
docker pull --platform linux/arm64 quay.io/me/web:1 => husk image pull --platform linux/arm64 quay.io/me/web:1
docker rmi web:1 => husk image rm web:1
docker rmi -f web:1 => husk image rm -f web:1
docker image rm web:1 => =
docker image prune => =
docker image prune -a => =
docker load -i web.tar => husk image load web.tar
docker build -t web . =>
docker push quay.io/me/web:1 => husk image push quay.io/me/web:1
docker tag web:1 quay.io/me/web:1 => husk image tag web:1 quay.io/me/web:1
docker save web:1 -o web.tar => husk image save web:1 -o web.tar
docker history web:1 => husk image history web:1
docker image inspect web:1 => =
docker login quay.io -u me => =
docker logout quay.io => =
docker network ls => husk net ls
docker network inspect mynet => husk net status mynet
docker network create mynet =>
docker volume ls => =
docker volume rm data => =
docker compose up -d => husk run shop.yaml
docker compose down => husk rm -f shop.yaml
docker system df => =
docker system prune => =
docker system prune -af --volumes => =
docker version => =
docker info => =
docker cp web:/etc/hosts . => =
docker swarm init =>
podman run --rm -it alpine sh => =
podman run -d --hostname front --label tier=web nginx => =
podman info => =
podman ps => =
podman ps -a => =
podman ps -q => =
podman pod ps => husk ps
podman pod ls => husk ps
podman pod stop shop => husk stop shop
podman pod rm -f shop => husk rm -f shop
podman pod inspect shop => husk inspect shop
podman kube play web.yaml => husk run web.yaml
podman play kube web.yaml => husk run web.yaml
podman kube down web.yaml => husk rm -f web.yaml
podman kube generate web => husk generate web
podman generate kube web => =
podman generate systemd web =>
podman images => husk image ls
podman rmi web:1 => husk image rm web:1
podman exec -it web sh -c ls => =
podman logs -f web => =
podman logs -l => =
podman stop web => =
podman rm -f web => =
podman network ls => husk net ls
podman volume ls => =
podman secret ls => husk objects
podman auto-update =>
podman unshare cat /proc/self/uid_map =>
kubectl apply -f https://example.com/web.yaml => =
kubectl apply -f web.yaml --dry-run=server => =
kubectl apply -f web.yaml => =
kubectl apply -f shop/ => =
kubectl create -f web.yaml => =
kubectl replace -f web.yaml => husk run --replace web.yaml
kubectl delete pod web => =
kubectl delete -f web.yaml => =
kubectl delete deployment web => =
kubectl get pods => husk ps
kubectl get pods -A => husk ps
kubectl get pods -o wide => husk ps -o wide
kubectl get pods -w => husk ps -w
kubectl get pods -o name => husk ps -o name
kubectl get pod web => husk ps
kubectl get deployments => husk rollout status
kubectl get deployment web => husk rollout status deployment/web
kubectl get jobs => husk rollout status
kubectl get cm => husk objects
kubectl get secrets => husk objects
kubectl get pvc => husk volume ls
kubectl get netpol => husk net policy
kubectl get nodes -o wide => husk net nodes
kubectl get events => husk events
kubectl -n kube-system get pods => husk ps -n kube-system
kubectl get pods -l app=web => husk ps -l app=web
kubectl describe pod web => =
kubectl describe web => =
kubectl logs web => =
kubectl logs -f web -c app => =
kubectl logs --tail=20 web => =
kubectl logs --previous web => =
kubectl logs -p web => =
kubectl logs web --all-containers => =
kubectl logs deployment/web => =
kubectl exec -it web -- sh => =
kubectl exec web -c app -- env => =
kubectl exec deployment/web -- env => =
kubectl debug -it web --image=busybox -- sh => =
kubectl debug web --image=busybox --target=app -- ls => =
kubectl attach -it web => =
kubectl port-forward web 8080:80 => =
kubectl port-forward deployment/web 8080:80 => =
kubectl top pod => =
kubectl top pod web => =
kubectl scale deployment/web --replicas=3 => =
kubectl rollout status deployment/web => =
kubectl rollout restart deployment/web => husk restart deployment/web
kubectl rollout undo deployment/web =>
kubectl edit deployment web =>
kubectl set image deployment/web app=web:2 =>
kubectl label pod web tier=front =>
kubectl explain pod.spec =>
kubectl events => =
kubectl cluster-info => husk net nodes
kubectl config get-contexts =>
kubectl drain node1 =>
kubectl version => =
kubectl wait pod/web --for=condition=Ready --timeout=60s => =
kubectl wait --for=delete pod/web => =
crictl ps => =
crictl ps -a => =
crictl pods => husk ps
crictl images => husk image ls
crictl pull quay.io/me/web:1 => husk image pull quay.io/me/web:1
crictl rmi web:1 => husk image rm web:1
crictl logs 3f2a1b4c5d6e => =
crictl inspect 3f2a1b4c5d6e => =
crictl inspectp 3f2a1b4c5d6e => husk inspect 3f2a1b4c5d6e
crictl stopp 3f2a1b4c5d6e => husk stop 3f2a1b4c5d6e
crictl rmp 3f2a1b4c5d6e => husk rm 3f2a1b4c5d6e
crictl runp pod.json => husk run web.yaml
crictl stats => husk top
crictl info => =
crictl imagefsinfo => husk system df
ctr -n k8s.io images ls => husk image ls
ctr images pull quay.io/me/web:1 => husk image pull quay.io/me/web:1
ctr -n k8s.io images import web.tar => husk image load web.tar
ctr images export web.tar quay.io/me/web:1 =>
ctr images rm quay.io/me/web:1 => husk image rm quay.io/me/web:1
ctr containers ls => husk ps --containers
ctr tasks ls => husk ps --containers
ctr task exec -t --exec-id 1 web sh => husk exec -it web -- sh
ctr namespaces ls =>
`

func lines(text string) []Line {
	var all []Line
	for line := range strings.Lines(strings.TrimSpace(text)) {
		typed, husk, _ := strings.Cut(line, "=>")
		l := Line{strings.TrimSpace(typed), strings.TrimSpace(husk)}
		if l.Husk == "=" {
			_, args, _ := strings.Cut(l.Typed, " ")
			l.Husk = "husk " + args
		}
		all = append(all, l)
	}
	return all
}

// Tool is the first word of the line that is typed.
func (l Line) Tool() string {
	tool, _, _ := strings.Cut(l.Typed, " ")
	return tool
}

// Args are the words after the tool.
func (l Line) Args() []string { return strings.Fields(l.Typed)[1:] }

// Same reports whether Husk takes the line as it is typed.
func (l Line) Same() bool { return l.Husk == "husk "+strings.Join(l.Args(), " ") }

// Reference is the reference page of the command lines. says returns what husk prints when the line
// is typed with husk in place of the tool, and "" if husk takes it.
func Reference(says func(Line) string) string {
	var b strings.Builder
	b.WriteString(`# Coming from docker, podman, kubectl, crictl or ctr

Generated from the tables that husk answers from, and executed by a test. The last column is what husk prints when the
line is typed with ` + "`husk`" + ` in place of the tool's name. Where it is empty, husk takes the line as it is.
`)
	tool := ""
	for _, l := range Lines {
		if l.Tool() != tool {
			tool = l.Tool()
			fmt.Fprintf(&b, "\n## %s\n\n| %s | Husk | husk prints |\n|---|---|---|\n", tool, tool)
		}
		husk := "none"
		switch {
		case l.Same():
			husk = "the same"
		case l.Husk != "":
			husk = "`" + l.Husk + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", l.Typed, husk, strings.ReplaceAll(says(l), "|", `\|`))
	}
	return b.String()
}
