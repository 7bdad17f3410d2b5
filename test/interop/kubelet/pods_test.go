package kubelet

// full is a pod with an init container, a sidecar, all kinds of probes, volumes and a host port.
const full = `
apiVersion: v1
kind: Pod
metadata:
  name: full
  namespace: default
  labels: {app: full, version: "1"}
spec:
  terminationGracePeriodSeconds: 2
  initContainers:
  - name: prepare
    image: localhost/web:1
    imagePullPolicy: Never
    command: [sh, -c, "echo version $VERSION > /data/index.html; cp /info/labels /data/labels; echo prepared"]
    env: [{name: VERSION, valueFrom: {fieldRef: {fieldPath: "metadata.labels['version']"}}}]
    volumeMounts: [{name: data, mountPath: /data}, {name: info, mountPath: /info}]
  - name: sidecar
    image: localhost/web:1
    imagePullPolicy: Never
    restartPolicy: Always
    command: [sh, -c, "trap 'exit 0' TERM; echo ready > /data/sidecar; while :; do sleep 3600 & wait; done"]
    startupProbe: {exec: {command: [test, -e, /data/sidecar]}, periodSeconds: 1}
    volumeMounts: [{name: data, mountPath: /data}]
  containers:
  - name: web
    image: localhost/web:1
    imagePullPolicy: Never
    command: [sh, -c, "echo serving; test -e /data/sidecar && exec httpd -f -p 80 -h /data"]
    ports: [{containerPort: 80, hostPort: 8080}]
    readinessProbe: {httpGet: {path: /index.html, port: 80}, periodSeconds: 1}
    livenessProbe: {exec: {command: [sh, -c, "test ! -e /tmp/sick"]}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 10}
    resources: {requests: {cpu: 50m, memory: 16Mi}, limits: {cpu: 500m, memory: 64Mi}}
    volumeMounts: [{name: data, mountPath: /data}, {name: host, mountPath: /host, readOnly: true}, {name: memory, mountPath: /memory}]
  - name: tcp
    image: localhost/web:1
    imagePullPolicy: Never
    command: [httpd, -f, -p, "81", -h, /data]
    readinessProbe: {tcpSocket: {port: 81}, periodSeconds: 1}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - {name: data, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: host, hostPath: {path: /etc, type: Directory}}
  - {name: info, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
`

// host is a pod on the node's network.
const host = `
apiVersion: v1
kind: Pod
metadata:
  name: host
  namespace: default
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: localhost/web:1
    imagePullPolicy: Never
    command: [httpd, -f, -p, "8090", -h, /etc]
    readinessProbe: {tcpSocket: {port: 8090}, periodSeconds: 1}
`

// configured is a pod that uses a config map, a secret and a service account token.
const configured = `
apiVersion: v1
kind: Pod
metadata:
  name: configured
  namespace: default
spec:
  terminationGracePeriodSeconds: 30
  containers:
  - name: web
    image: localhost/web:1
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "trap 'echo ending; exit 0' TERM; while :; do sleep 3600 & wait; done"]
    env:
    - {name: COLOUR, valueFrom: {configMapKeyRef: {name: settings, key: colour}}}
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: password, key: password}}}
    volumeMounts:
    - {name: settings, mountPath: /settings}
    - {name: password, mountPath: /secret}
    - {name: projected, mountPath: /projected}
  volumes:
  - {name: settings, configMap: {name: settings}}
  - {name: password, secret: {secretName: password, defaultMode: 0o400}}
  - name: projected
    projected:
      sources:
      - {configMap: {name: settings}}
      - {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
      - {serviceAccountToken: {path: token, expirationSeconds: 3600}}
`

// graceful is a pod whose containers log how they start and stop, in a directory of the node.
const graceful = `
apiVersion: v1
kind: Pod
metadata:
  name: graceful
  namespace: default
spec:
  terminationGracePeriodSeconds: 60
  initContainers:
  - name: sidecar
    image: localhost/web:1
    imagePullPolicy: Never
    restartPolicy: Always
    command: [sh, -c, "trap 'echo SIGTERM to the sidecar >> /steps/log; exit 0' TERM; while :; do sleep 3600 & wait; done"]
    volumeMounts: [{name: steps, mountPath: /steps}]
  containers:
  - name: c
    image: localhost/web:1
    imagePullPolicy: Never
    command: [sh, -c, "trap 'echo SIGTERM >> /steps/log; exit 0' TERM; while :; do sleep 3600 & wait; done"]
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
    lifecycle:
      postStart: {exec: {command: [sh, -c, "echo started >> /steps/log"]}}
      preStop: {exec: {command: [sh, -c, "echo preStop begins >> /steps/log; sleep 1; echo preStop ends >> /steps/log"]}}
    volumeMounts: [{name: steps, mountPath: /steps}]
  volumes:
  - {name: steps, hostPath: {path: %s, type: Directory}}
`

// deaf is a pod that ignores SIGTERM.
const deaf = `
apiVersion: v1
kind: Pod
metadata:
  name: deaf
  namespace: default
spec:
  terminationGracePeriodSeconds: 3
  containers:
  - name: c
    image: localhost/web:1
    imagePullPolicy: Never
    command: [sh, -c, "trap '' TERM; while :; do sleep 3600; done"]
`

// starting is a pod whose startup probe succeeds when a test makes it. That of unstarted never
// does.
const (
	starting = `
apiVersion: v1
kind: Pod
metadata:
  name: starting
  namespace: default
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: localhost/web:1
    imagePullPolicy: Never
    command: [sleep, "3600"]
    startupProbe: {exec: {command: [test, -e, /tmp/started]}, periodSeconds: 1, failureThreshold: 1000}
    livenessProbe: {exec: {command: [test, -e, /tmp/started]}, periodSeconds: 1, failureThreshold: 1}
`
	unstarted = `
apiVersion: v1
kind: Pod
metadata:
  name: unstarted
  namespace: default
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: localhost/web:1
    imagePullPolicy: Never
    command: [sleep, "3600"]
    startupProbe: {tcpSocket: {port: 9}, periodSeconds: 1, failureThreshold: 2}
`
)

// attached is a pod whose containers read their stdin. Two of them end with it.
const attached = `
apiVersion: v1
kind: Pod
metadata:
  name: attached
  namespace: default
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: lines
    image: localhost/web:1
    imagePullPolicy: Never
    stdin: true
    command: [sh, -c, "while read line; do echo heard $line; echo noted $line >&2; done"]
  - name: terminal
    image: localhost/web:1
    imagePullPolicy: Never
    stdin: true
    tty: true
    command: [sh, -c, "while read line; do stty size; done"]
  - name: once-websocket
    image: localhost/web:1
    imagePullPolicy: Never
    stdin: true
    stdinOnce: true
    command: [cat]
  - name: once-spdy
    image: localhost/web:1
    imagePullPolicy: Never
    stdin: true
    stdinOnce: true
    command: [cat]
`
