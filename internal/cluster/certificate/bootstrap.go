package certificate

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
)

// Usable reports whether a kubeconfig exists and its client certificate, if it has one, hasn't
// expired.
func Usable(kubeconfig string) (bool, error) {
	if _, err := os.Stat(kubeconfig); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return false, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	chain := cfg.CertData
	if len(chain) == 0 && cfg.CertFile != "" {
		if chain, err = os.ReadFile(cfg.CertFile); errors.Is(err, fs.ErrNotExist) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
		}
	}
	if len(chain) == 0 {
		return true, nil
	}
	list, err := cert.ParseCertsPEM(chain)
	if err != nil {
		return false, fmt.Errorf("kubeconfig %s: client certificate: %w", kubeconfig, err)
	}
	return time.Now().Before(list[0].NotAfter), nil
}

// ManagedBy reports whether a kubeconfig's client certificate is in the file.
func ManagedBy(kubeconfig, file string) bool {
	cfg, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil || cfg.Contexts[cfg.CurrentContext] == nil {
		return false
	}
	user := cfg.AuthInfos[cfg.Contexts[cfg.CurrentContext].AuthInfo]
	return user != nil && user.ClientCertificate == file
}

// WriteKubeconfig writes a kubeconfig for the server of another one, whose user has the client
// certificate in the file.
func WriteKubeconfig(kubeconfig, bootstrap, file string) error {
	if _, err := tls.LoadX509KeyPair(file, file); err != nil {
		return err
	}
	from, err := clientcmd.BuildConfigFromFlags("", bootstrap)
	if err != nil {
		return fmt.Errorf("--bootstrap-kubeconfig %s: %w", bootstrap, err)
	}
	out := clientcmdapi.NewConfig()
	const name = "node"
	out.Clusters[name] = &clientcmdapi.Cluster{
		Server: from.Host, TLSServerName: from.ServerName, InsecureSkipTLSVerify: from.Insecure,
		CertificateAuthority: from.CAFile, CertificateAuthorityData: from.CAData,
	}
	if from.CAFile != "" {
		out.Clusters[name].CertificateAuthorityData = nil
	}
	out.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: file, ClientKey: file}
	out.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	out.CurrentContext = name
	text, err := clientcmd.Write(*out)
	if err != nil {
		return err
	}
	return writeFile(kubeconfig, text)
}
