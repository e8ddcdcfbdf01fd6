# A host of a Slurm site before ONES: bare Debian with systemd, Debian's Slurm, and emulated GPUs.
ARG DEBIAN
ARG BUILDER
FROM ${BUILDER} AS emulation
COPY tests/emulation /src
COPY tests/install/driver.control /driver/DEBIAN/control
RUN make -C /src BUILD=/driver/usr/lib/emulation /driver/usr/lib/emulation/libnvidia-ml.so.1 \
 && install -d /driver/etc/ld.so.conf.d && echo /usr/lib/emulation > /driver/etc/ld.so.conf.d/emulation.conf \
 && echo 'activate-noawait ldconfig' > /driver/DEBIAN/triggers \
 && dpkg-deb --build --root-owner-group /driver /driver.deb

FROM ${DEBIAN}
COPY host/ /etc/ones-build/
ENV APT_CONFIG=/etc/ones-build/apt.conf
COPY tests/cluster/image/install-packages tests/install/packages /etc/ones-build/
# What keeps an image small, and its services still, would be in the way of a host.
RUN /etc/ones-build/install-packages && rm /usr/sbin/policy-rc.d \
 && echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/ones-image \
 && sed -i 's/ main$/ main contrib/' /etc/apt/sources.list
COPY --from=emulation /driver.deb /root/
RUN dpkg --install /root/driver.deb && rm /root/driver.deb
COPY tests/emulation/gpu-emulator tests/emulation/emulated_gpu /opt/emulation/emulated_gpu/
COPY tests/cluster/image/etc /etc/ones-build/site/
COPY tests/install/prepare-host tests/install/gpu-emulator.service tests/install/sandbox-probe /etc/ones-build/site/
COPY tests/cluster/jobs/counting.py tests/cluster/jobs/counted_digits.py tests/cluster/jobs/steered_onesd.py /opt/jobs/
RUN /etc/ones-build/site/prepare-host
CMD ["/lib/systemd/systemd"]
