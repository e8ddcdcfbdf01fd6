# A cluster of one host to try things on: scripts/package --as image.
ARG BASE
FROM ${BASE}
COPY docs/examples /home/examples
COPY tests/cluster/image/welcome /usr/local/lib/ones-cluster/
CMD ["all"]
