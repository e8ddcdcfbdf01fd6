# PySlurm built against this image's Slurm, where there is one for it (else 3); minutes of compiling,
# hence a layer of its own.
ARG BASE
FROM ${BASE}
COPY slurm_ext/pyslurm_build /usr/src/pyslurm_build
RUN { /usr/src/pyslurm_build/build || [ $? -eq 3 ]; } && rm -rf /usr/src/pyslurm_build
