# The frameworks of docs/recipes.md, in an environment of their own that sees all of ours.
ARG BASE
FROM ${BASE}
COPY tests/cluster/image/recipes-packages /etc/ones-build/
RUN python3 -m venv --system-site-packages --without-pip /opt/recipes \
 && echo "import site; site.addsitedir('$(echo /opt/ones/lib/python3*/site-packages)')" \
    > "$(echo /opt/recipes/lib/python3*/site-packages)/ones.pth" \
 && printf '#!/opt/recipes/bin/python\nfrom ones.slurm_ext.runtime.launcher import main\nmain()\n' \
    > /opt/recipes/bin/ones-run \
 && chmod +x /opt/recipes/bin/ones-run \
 && python3 -m pip --python /opt/recipes/bin/python install --quiet --no-deps \
    --requirement /etc/ones-build/recipes-packages
