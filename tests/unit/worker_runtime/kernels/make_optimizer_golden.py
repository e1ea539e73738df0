#!/usr/bin/python3
"""Writes optimizer_golden.txt: what torch.optim does to 5 numbers in 6 steps, in double.

Parameter i begins as cos(i); its gradient in step t (from 1) is sin(1 + 3 i + 7 t). Each line is a
case:

  adamw|adam LR BETA1 BETA2 EPSILON WEIGHT_DECAY NUMBER...    after each step
  sgd LR MOMENTUM NESTEROV WEIGHT_DECAY NUMBER...
"""
import itertools
import math
import os

import torch


def numbers(make_optimizer):
    weight = torch.nn.Parameter(torch.tensor([math.cos(i) for i in range(5)], dtype=torch.float64))
    optimizer = make_optimizer([weight])
    after = []
    for t in range(1, 7):
        weight.grad = torch.tensor(
            [math.sin(1 + 3 * i + 7 * t) for i in range(5)], dtype=torch.float64
        )
        optimizer.step()
        after += [repr(x) for x in weight.tolist()]
    return after


def lines():
    yield "made_with torch-%s" % torch.__version__
    for name, cls in [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam)]:
        for lr, betas, eps, decay in itertools.product(
            [0.1, 1e-3], [(0.9, 0.95), (0.0, 0.999)], [1e-8, 1e-3], [0.0, 0.1]
        ):
            yield " ".join(map(str, [name, lr, *betas, eps, decay] + numbers(
                lambda p: cls(p, lr=lr, betas=betas, eps=eps, weight_decay=decay))))
    for lr, (momentum, nesterov), decay in itertools.product(
        [0.1, 1e-3], [(0.0, False), (0.9, False), (0.9, True)], [0.0, 0.1]
    ):
        yield " ".join(
            map(
                str,
                ["sgd", lr, momentum, int(nesterov), decay]
                + numbers(
                    lambda p: torch.optim.SGD(
                        p, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=decay
                    )
                ),
            )
        )


with open(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "optimizer_golden.txt"), "w"
) as golden:
    golden.writelines(line + "\n" for line in lines())
