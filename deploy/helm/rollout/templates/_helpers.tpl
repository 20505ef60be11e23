{{- define "rollout.fullname" -}}
{{ default .Release.Name .Values.fullnameOverride }}
{{- end }}

{{- define "rollout.image" -}}
{{- $repository := required "image.repository is required: an image that deploy/container builds, in your registry" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end }}

{{- define "rollout.storeUrl" -}}
{{ required "store.url is required: the object store of members, workers and clients, such as s3://my-bucket/rollout" .Values.store.url }}
{{- end }}

{{- define "rollout.labels" -}}
app.kubernetes.io/name: rollout
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "rollout.memberLabels" -}}
app.kubernetes.io/name: rollout
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: member
{{- end }}

{{- /* Domain of the members: POD.DOMAIN resolves to a member, ready or not. */ -}}
{{- define "rollout.memberDomain" -}}
{{ include "rollout.fullname" . }}-members.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{- /* Client addresses of all members, separated by commas. */ -}}
{{- define "rollout.endpoints" -}}
{{- $name := include "rollout.fullname" . -}}
{{- $domain := include "rollout.memberDomain" . -}}
{{- range $i := until (int .Values.members.replicas) -}}
{{- if $i }},{{ end }}{{ $name }}-{{ $i }}.{{ $domain }}:7420
{{- end -}}
{{- end }}

{{- /* Enrollment addresses of all members, as TOML. The leader issues certificates, and any member may lead. */ -}}
{{- define "rollout.enrollmentEndpoints" -}}
{{- $name := include "rollout.fullname" . -}}
{{- $domain := include "rollout.memberDomain" . -}}
[{{- range $i := until (int .Values.members.replicas) -}}
{{- if $i }}, {{ end }}"{{ $name }}-{{ $i }}.{{ $domain }}:7423"
{{- end -}}]
{{- end }}

{{- /* Alert rules distinguish clusters by job: the members and workers of a release share a job that no other release has. */ -}}
{{- define "rollout.job" -}}
- targetLabel: job
  replacement: {{ .Release.Namespace }}/{{ include "rollout.fullname" . }}
{{- end }}

{{- define "rollout.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "rollout.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end }}

{{- define "rollout.storeEnv" -}}
{{- if .Values.store.credentialsSecret }}
envFrom:
  - secretRef:
      name: {{ .Values.store.credentialsSecret }}
{{- end }}
{{- end }}

{{- /* The admin's certificate files, for the bootstrap, the test and the backup. */ -}}
{{- define "rollout.adminFiles" -}}
projected:
  defaultMode: 0440
  sources:
    - secret:
        {{- if eq .Values.tls.mode "existing" }}
        name: {{ .Values.tls.existingSecret }}
        items:
          {{- if not .Values.tls.caBundle.configMap }}
          - {key: ca.pem, path: ca.pem}
          {{- end }}
          - {key: admin.pem, path: admin.pem}
          - {key: admin.key, path: admin.key}
        {{- else }}
        name: {{ include "rollout.fullname" . }}-admin
        items:
          {{- if not .Values.tls.caBundle.configMap }}
          - {key: ca.crt, path: ca.pem}
          {{- end }}
          - {key: tls.crt, path: admin.pem}
          - {key: tls.key, path: admin.key}
        {{- end }}
    {{- with .Values.tls.caBundle.configMap }}
    - configMap:
        name: {{ . }}
        items:
          - {key: {{ $.Values.tls.caBundle.key }}, path: ca.pem}
    {{- end }}
{{- end }}

{{- define "rollout.adminEnv" -}}
- name: ROLLOUT_ENDPOINTS
  value: {{ include "rollout.endpoints" . }}
- name: ROLLOUT_CA_CERT
  value: /etc/rollout/tls/ca.pem
- name: ROLLOUT_CERT
  value: /etc/rollout/tls/admin.pem
- name: ROLLOUT_KEY
  value: /etc/rollout/tls/admin.key
{{- end }}

{{- /* One file for all members. Each takes its name, zone and certificate from its environment. */ -}}
{{- define "rollout.configText" -}}
data_dir = "/var/lib/rollout/member"
log = {{ .Values.members.log | quote }}
{{- if .Values.members.clusterId }}
cluster_id = {{ .Values.members.clusterId | quote }}
{{- end }}

[listen]
client = "{{ .Values.members.listen }}:7420"
peer = "{{ .Values.members.listen }}:7421"
http = "{{ .Values.members.listen }}:7422"

[tls]
ca_file = "{{ include "rollout.caFile" . }}"

[store]
url = {{ include "rollout.storeUrl" . | quote }}
{{- if .Values.store.urls }}
urls = {{ toJson .Values.store.urls }}
{{- end }}
{{- if .Values.members.audit.file }}

[audit]
file = "/var/lib/rollout/audit.log"
bytes_max = {{ int .Values.members.audit.bytesMax }}
files_max = {{ int .Values.members.audit.filesMax }}
{{- end }}
{{- if .Values.members.webhooks.allow }}

[webhooks]
allow = {{ toJson .Values.members.webhooks.allow }}
secret_file = "/etc/rollout/webhooks/secret"
{{- end }}
{{- if .Values.members.enrollment.existingSecret }}

[enrollment]
listen = "{{ .Values.members.listen }}:7423"
issuer_cert_file = "/etc/rollout/issuer/issuer.pem"
issuer_key_file = "/etc/rollout/issuer/issuer.key"
lifetime_s = {{ int .Values.members.enrollment.lifetimeSeconds }}
{{- end }}
{{- if .Values.members.config }}

{{ .Values.members.config }}
{{- end }}
{{- end }}

{{- define "rollout.workerLabels" -}}
app.kubernetes.io/name: rollout
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: worker
{{- end }}

{{- /* File with the CAs that members and workers trust. */ -}}
{{- define "rollout.caFile" -}}
{{- if and (eq .Values.tls.mode "csi") .Values.tls.caBundle.configMap -}}
/etc/rollout/ca/ca.pem
{{- else -}}
/etc/rollout/tls/ca.pem
{{- end -}}
{{- end }}

{{- /* The certificate of one pod. The driver creates the key on the node, for this pod only; a projected volume cannot contain it. */ -}}
{{- define "rollout.csiAttributes" -}}
csi.cert-manager.io/issuer-name: {{ .Values.tls.issuerRef.name | quote }}
csi.cert-manager.io/issuer-kind: {{ .Values.tls.issuerRef.kind | quote }}
csi.cert-manager.io/issuer-group: {{ .Values.tls.issuerRef.group | quote }}
csi.cert-manager.io/duration: {{ .Values.tls.duration | quote }}
csi.cert-manager.io/renew-before: {{ .Values.tls.renewBefore | quote }}
csi.cert-manager.io/key-algorithm: ECDSA
csi.cert-manager.io/key-size: "256"
csi.cert-manager.io/key-encoding: PKCS8
csi.cert-manager.io/ca-file: ca.pem
csi.cert-manager.io/certificate-file: tls.pem
csi.cert-manager.io/privatekey-file: tls.key
csi.cert-manager.io/fs-group: "65532"
{{- end }}

{{- /* With csi, the CA bundle is a separate volume. */ -}}
{{- define "rollout.csiBundle" -}}
{{- with .Values.tls.caBundle.configMap }}
- name: ca
  configMap:
    name: {{ . }}
    items:
      - {key: {{ $.Values.tls.caBundle.key }}, path: ca.pem}
{{- end }}
{{- end }}

{{- define "rollout.certificateTerms" -}}
duration: {{ .Values.tls.duration }}
renewBefore: {{ .Values.tls.renewBefore }}
privateKey:
  algorithm: ECDSA
  size: 256
  encoding: PKCS8
  rotationPolicy: Always
issuerRef:
  name: {{ .Values.tls.issuerRef.name }}
  kind: {{ .Values.tls.issuerRef.kind }}
  group: {{ .Values.tls.issuerRef.group }}
{{- end }}
