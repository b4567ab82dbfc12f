# lovec for the CPU. Without arguments it serves the tiny model of the embedded world, to try the endpoint:
#   docker build -t lovec . && docker run --rm -p 127.0.0.1:8080:8080 lovec
# A model of yours, with a key that clients must send:
#   docker run --rm -p 8080:8080 -e LOVEC_API_KEY -v "$PWD/runs:/work/runs:ro" lovec \
#       serve --adapter runs/dpo --host 0.0.0.0
FROM python:3.12-slim AS build
# torch's own index has builds without CUDA, which are a tenth of the size.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/lovec && /opt/lovec/bin/pip install --no-cache-dir "torch>=2.11,<2.14" --index-url "$TORCH_INDEX"
WORKDIR /source
COPY pyproject.toml setup.cfg README.md LICENSE ./
COPY lovec lovec
COPY cli cli
COPY configs configs
RUN /opt/lovec/bin/pip install --no-cache-dir ".[serve]"

FROM python:3.12-slim
COPY --from=build /opt/lovec /opt/lovec
RUN useradd --create-home --uid 1000 lovec && mkdir /work && chown lovec /work
ENV PATH=/opt/lovec/bin:$PATH
USER lovec
WORKDIR /work
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["lovec"]
CMD ["serve", "--adapter", "world", "--host", "0.0.0.0", "--port", "8080"]
