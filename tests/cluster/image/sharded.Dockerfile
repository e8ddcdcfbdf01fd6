# PyTorch of the Python index with the frameworks of docs/recipes.md that shard parameters, in an
# environment of their own: FSDP2 over gloo is more than Debian's PyTorch 2.6 can do. Some GB, most of
# it CUDA's libraries, without which that PyTorch does not start.
ARG BASE
FROM ${BASE}
COPY tests/cluster/image/sharded-packages /etc/ones-build/
RUN python3 -m venv --system-site-packages --without-pip /opt/sharded \
 && python3 -m pip --python /opt/sharded/bin/python install --quiet --no-deps --no-compile \
    --requirement /etc/ones-build/sharded-packages
# Users can't write there, and workers would compile PyTorch at each start. Some files are templates.
RUN python3 -m compileall -q -j 2 /opt/sharded/lib/python3.13/site-packages > /dev/null || true
