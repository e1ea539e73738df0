# An image for training: the one that you use today, and the wheel.
#   deploy/dev wheel
#   docker build -t registry.example/train:1 -f deploy/docker/pytorch.Dockerfile build/wheel
FROM pytorch/pytorch
COPY muster_launch-*.whl /tmp/
RUN pip install --no-index /tmp/muster_launch-*.whl && rm /tmp/muster_launch-*.whl
