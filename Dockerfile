# One image for all roles: what it runs is the command's arguments, for example `docker run fedrec aggregator --settings ...`.
# Everything is installed from wheels, so no compiler is needed: those whose SHA-256 deploy/requirements.lock has, and for other
# extras than `deploy` further ones at the versions of constraints.txt; with Flower all are at these.
#   docker build -t fedrec .
#   docker build -t fedrec:news --build-arg EXTRAS=deploy,news . # with torch, for news; PIP_EXTRA_INDEX_URL may name one with its CPU build
ARG PYTHON=python:3.11.13-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY fedrec fedrec
COPY server server
COPY client client
COPY aggregator aggregator
COPY simulations simulations
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${PYTHON}
ARG EXTRAS=deploy
ARG PIP_EXTRA_INDEX_URL
COPY constraints.txt deploy/requirements.lock /tmp/
COPY --from=build /wheels /tmp/wheels
# the lock's versions win: Flower alone needs those of constraints.txt throughout
RUN python -m venv /opt/fedrec \
 && case ",${EXTRAS}," in *,flower,*|*,ray,*|*,all,*) : ;; *) \
      /opt/fedrec/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary :all: --require-hashes \
        --requirement /tmp/requirements.lock \
      && sed 's/ --hash.*//' /tmp/requirements.lock > /tmp/pins.txt ;; esac \
 && cat /tmp/constraints.txt >> /tmp/pins.txt \
 && awk -F== -v OFS='==' '{ gsub("_", "-", $1); name = tolower($1) } !seen[name]++ && !/^#/' /tmp/pins.txt > /tmp/constraints.txt \
 && /opt/fedrec/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary :all: --constraint /tmp/constraints.txt \
      "$(echo /tmp/wheels/fedrec-*.whl)[${EXTRAS}]" \
 && rm -r /tmp/wheels /tmp/pins.txt /tmp/constraints.txt /tmp/requirements.lock \
 && groupadd --gid 10001 fedrec \
 && useradd --uid 10001 --gid fedrec --no-create-home --home-dir /var/lib/fedrec --shell /usr/sbin/nologin fedrec \
 && install -d -o fedrec -g fedrec -m 0700 /var/lib/fedrec
ENV PATH=/opt/fedrec/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/tmp/numba
USER 10001:10001
WORKDIR /var/lib/fedrec
STOPSIGNAL SIGTERM
# Whoever starts a role mounts its settings here: they say which role it is, and `status --own` asks that one only.
HEALTHCHECK --interval=60s --timeout=20s --start-period=120s --retries=3 \
  CMD ["fedrec", "status", "--own", "/etc/fedrec/settings.toml"]
ENTRYPOINT ["fedrec"]
CMD ["--help"]
