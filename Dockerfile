# One image for each program:
#   docker build --build-arg PROGRAM=webhook .
#   docker build --build-arg PROGRAM=syncer .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY api/ api/
COPY cmd/ cmd/
COPY internal/ internal/
ARG PROGRAM
ARG TARGETOS TARGETARCH
RUN test -n "$PROGRAM" || { echo "give --build-arg PROGRAM=webhook or PROGRAM=syncer" >&2; exit 1; }
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags="-s -w" -o /program ./cmd/$PROGRAM

FROM gcr.io/distroless/static:nonroot
COPY --from=build /program /program
USER 65532:65532
ENTRYPOINT ["/program"]
