# PySlurm built against this image's Slurm; minutes of compiling, hence a layer of its own.
ARG BASE
FROM ${BASE}
COPY slurm_ext/pyslurm_build /usr/src/pyslurm_build
RUN /usr/src/pyslurm_build/build && rm -rf /usr/src/pyslurm_build
