# enmasse for CPUs in an image that has nothing else:
#
#     docker build --tag enmasse .
#     docker run --rm --volume "$PWD:/data" --workdir /data enmasse train flower_photos
#
# For GPUs and MPI take the glibc program on an image that has NVIDIA's libraries or MPI: docs/release.md.
FROM rust:1-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rustup target add x86_64-unknown-linux-musl
WORKDIR /enmasse
COPY . .
ENV CC_x86_64_unknown_linux_musl=gcc
RUN cargo build --locked --release --package enmasse --target x86_64-unknown-linux-musl --config 'profile.release.strip = "symbols"'
RUN mkdir /empty

FROM scratch
COPY --from=build /enmasse/target/x86_64-unknown-linux-musl/release/enmasse /bin/enmasse
COPY --from=build --chmod=1777 /empty /tmp
ENV HOME=/tmp
ENTRYPOINT ["/bin/enmasse"]
