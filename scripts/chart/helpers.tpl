{{- /* list: the root, a component, its key in the values */ -}}
{{- define "unbounded.image" -}}
{{- $root := index . 0 -}}
{{- $own := (index $root.Values (index . 2)).image -}}
{{- if $own -}}
{{ $own }}
{{- else -}}
{{ required "imageRegistry: wanted where images come from, such as registry.example.com/unbounded" $root.Values.imageRegistry | trimSuffix "/" }}/{{ index . 1 }}:{{ $root.Values.imageTag | default (printf "v%s" $root.Chart.AppVersion) }}
{{- end -}}
{{- end -}}

{{- /* list: the root, the key of a component: its file of settings, as kustomize's component has it */ -}}
{{- define "unbounded.config" -}}
{{- $root := index . 0 -}}
{{- $defaults := dict "machina" (dict "maxConcurrentReconciles" 50) "machineOps" (dict "maxConcurrentReconciles" 10) -}}
{{- $config := merge (dict) (index $root.Values (index . 1)).config (index $defaults (index . 1) | default dict) -}}
@HEADER@
{{ toYaml $config }}
{{ end -}}

{{- /* list: the root, a name, the key of a component: the name with a digest of its content, so that other settings make other Pods */ -}}
{{- define "unbounded.configName" -}}
{{ index . 1 }}-{{ include "unbounded.config" (list (index . 0) (index . 2)) | sha256sum | trunc 10 }}
{{- end -}}

{{- /* a deployment of machine-ops-controller: its name */ -}}
{{- define "unbounded.machineOpsName" -}}
{{- $site := .site | default "" -}}
{{- $provider := .provider | default "" -}}
{{- $whole := compact (list "machine-ops-controller" $site (lower $provider)) | join "-" -}}
{{- $plain := regexReplaceAll "[^a-z0-9]" $whole "-" -}}
{{- if eq $plain $whole -}}{{ $whole }}{{- else -}}{{ $plain }}-{{ printf "%s/%s" $site $provider | sha256sum | trunc 8 }}{{- end -}}
{{- end -}}

{{- /* why deployments of machine-ops-controller cannot be meant; empty where they can */ -}}
{{- define "unbounded.machineOpsFault" -}}
{{- $deployments := .Values.machineOps.deployments -}}
{{- range $i, $one := $deployments -}}
{{- $name := include "unbounded.machineOpsName" $one -}}
{{- if gt (len $name) 63 -}}
machineOps.deployments[{{ $i }}]: {{ $name }} has more than 63 characters, which a Service's name may have
{{- end -}}
{{- range $j, $other := $deployments -}}
{{- if gt $j $i -}}
{{- $sites := or (empty $one.site) (empty $other.site) (eq ($one.site | default "") ($other.site | default "")) -}}
{{- $providers := or (empty $one.provider) (empty $other.provider) (eq ($one.provider | default "") ($other.provider | default "")) -}}
{{- if and $sites $providers -}}
machineOps.deployments[{{ $i }}] and [{{ $j }}]: both would work on the same Machines; give each its own sites and providers
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* why the log-in of the console cannot be meant; empty where it can */ -}}
{{- define "unbounded.consoleFault" -}}
{{- $oidc := .Values.console.oidc | default dict -}}
{{- $secret := ($oidc.clientSecret | default dict).name -}}
{{- if and $oidc.issuerURL (not $oidc.clientID) -}}
console.oidc: issuerURL needs clientID, the client that the provider knows
{{- end -}}
{{- if and (not $oidc.issuerURL) (or $oidc.clientID $secret $oidc.ca $oidc.scopes) -}}
console.oidc: clientID, clientSecret, ca and scopes need issuerURL
{{- end -}}
{{- if contains "PRIVATE KEY" ($oidc.ca | default "") -}}
console.oidc.ca: has a private key: give certificates alone
{{- end -}}
{{- end -}}

{{- /* why the sites of metalman cannot be meant; empty where they can */ -}}
{{- define "unbounded.metalmanFault" -}}
{{- $before := list -}}
{{- range $i, $one := .Values.metalman.sites -}}
{{- $site := $one.site | default "without a name" -}}
{{- if has $site $before -}}
metalman.sites[{{ $i }}]: {{ if $one.site }}site {{ $site }}{{ else }}a site {{ $site }}{{ end }} is there twice
{{- end -}}
{{- if and $one.mediaURL (not $one.mediaSecret) }}
metalman.sites[{{ $i }}]: mediaURL needs mediaSecret
{{- end -}}
{{- if and (eq ($one.dhcpMode | default "") "none") (or $one.interface $one.relays) }}
metalman.sites[{{ $i }}]: dhcpMode none excludes interface and relays, which are for DHCP: omit them, or dhcpMode
{{- end -}}
{{- $before = append $before $site -}}
{{- end -}}
{{- end -}}
