# For those who want to build with Docker what `make images` builds without it: one image
# for each program, with nothing else in it.
#   docker build --target=webhook -t registry.example.com/muster-webhook:dev .
#   docker build --target=syncer -t registry.example.com/muster-syncer:dev .
#   docker build --target=charts -t registry.example.com/muster-charts:dev .
#   docker build --target=registrar -t registry.example.com/muster-registrar:dev .
#   docker build --target=installer -t registry.example.com/muster-installer:dev .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY api/ api/
COPY cmd/ cmd/
COPY internal/ internal/
ARG TARGETOS TARGETARCH
# Which build it is, for --version: the version, the commit and its date.
ARG VERSION REVISION DATE
RUN mkdir /out && CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags="-s -w -X=github.com/muster-fleet/muster/internal/version.version=$VERSION -X=github.com/muster-fleet/muster/internal/version.revision=$REVISION -X=github.com/muster-fleet/muster/internal/version.date=$DATE" \
    -o /out/ ./cmd/...

FROM scratch AS webhook
COPY --from=build /out/webhook /webhook
USER 65532:65532
ENTRYPOINT ["/webhook"]

FROM scratch AS syncer
COPY --from=build /out/syncer /syncer
USER 65532:65532
ENTRYPOINT ["/syncer"]

# It calls servers whose certificates the world's authorities sign.
FROM scratch AS charts
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/charts /charts
USER 65532:65532
ENTRYPOINT ["/charts"]

FROM scratch AS registrar
COPY --from=build /out/registrar /registrar
USER 65532:65532
ENTRYPOINT ["/registrar"]

# It calls the repository of Fleet's charts.
FROM scratch AS installer
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/installer /installer
USER 65532:65532
ENTRYPOINT ["/installer"]
