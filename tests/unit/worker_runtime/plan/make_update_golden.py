#!/usr/bin/python3
"""Writes update_golden.txt: loss scales and learning rates of DeepSpeed and PyTorch.

Made with the peers of deploy/dev; their versions stand in its first line.

  deepspeed POWER WINDOW HYSTERESIS CONSECUTIVE MINIMUM BITS SCALE...   after each step; at the end
                                                                        "ends" if it gives up
  torch INITIAL GROWTH BACKOFF INTERVAL BITS SCALE...
                                                                        "=": as before
  rate KIND RISE PEAK FLOOR WARMUP TOTAL RATE...                        of each update
"""
import logging
import os
import random

import deepspeed
import torch
from deepspeed.runtime.fp16 import loss_scaler
from deepspeed.runtime.lr_schedules import WarmupDecayLR, WarmupLR

STEPS = 16
logging.disable(logging.CRITICAL)
loss_scaler.dist.get_rank = lambda: 0


def bits(random_, chance):
    return [random_.random() < chance for _ in range(STEPS)]


def brief(scales, first):
    """With = for a scale that stays."""
    return [
        "=" if scale == before else scale
        for before, scale in zip([repr(float(first))] + scales, scales)
    ]


def text(overflows):
    return "".join(str(int(o)) for o in overflows)


def deepspeed_scales(power, window, hysteresis, consecutive, minimum, overflows):
    scaler = loss_scaler.DynamicLossScaler(
        init_scale=2**power,
        scale_window=window,
        min_scale=minimum,
        delayed_shift=hysteresis,
        consecutive_hysteresis=consecutive,
        raise_error_at_min_scale=True,
    )
    scales = []
    for overflow in overflows:
        try:
            scaler.update_scale(overflow)
        except Exception:
            return brief(scales + ["ends"], 2**power)
        scales.append(repr(float(scaler.cur_scale)))
    return brief(scales, 2**power)


def torch_scales(initial, growth, backoff, interval, overflows):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0)
    scaler = torch.amp.GradScaler(
        "cpu",
        init_scale=initial,
        growth_factor=growth,
        backoff_factor=backoff,
        growth_interval=interval,
    )
    scaler.scale(torch.ones(1))
    scales = []
    for overflow in overflows:
        weight.grad = torch.full((1,), float("inf") if overflow else 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(repr(float(scaler.get_scale())))
    return brief(scales, initial)


def rates(make_schedule, peak, count):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=peak)
    schedule = make_schedule(optimizer)
    taken = []
    for _ in range(count):
        taken.append(repr(float(optimizer.param_groups[0]["lr"])))
        optimizer.step()
        schedule.step()
    return taken


def lines():
    yield "made_with deepspeed-%s torch-%s" % (deepspeed.__version__, torch.__version__)
    random_ = random.Random(1)
    for _ in range(600):
        options = (
            random_.choice([0, 2, 16, 31]),
            random_.randint(1, 6),
            random_.randint(1, 4),
            random_.random() < 0.5,
            random_.choice([1, 1, 4, 0.5]),
        )
        if options[4] > 2**options[0]:
            continue
        overflows = bits(random_, random_.choice([0.1, 0.3, 0.6]))
        power, window, hysteresis, consecutive, minimum = options
        yield " ".join(
            map(
                str,
                ["deepspeed", power, window, hysteresis, int(consecutive), minimum, text(overflows)]
                + deepspeed_scales(*options, overflows),
            )
        )
    for _ in range(500):
        options = (
            random_.choice([65536.0, 1.0, 3.5, 2.0**126]),
            random_.choice([2.0, 2.0, 2.0, 1.5]),
            random_.choice([0.5, 0.5, 0.5, 0.3]),
            random_.randint(1, 6),
        )
        overflows = bits(random_, random_.choice([0.1, 0.3, 0.6]))
        yield " ".join(
            map(str, ["torch", *options, text(overflows)] + torch_scales(*options, overflows))
        )
    for peak, floor, warmup, total in [
        (1e-3, 0, 1, 10),
        (1e-3, 1e-5, 2, 20),
        (3e-4, 3e-5, 5, 12),
        (1, 0.5, 10, 30),
        (2e-3, 0, 7, 8),
    ]:
        for rise in ["log", "linear"]:
            common = dict(
                warmup_min_lr=floor, warmup_max_lr=peak, warmup_num_steps=warmup, warmup_type=rise
            )
            head = [rise, peak, floor, warmup, total]
            yield " ".join(
                map(
                    str,
                    ["rate", "warmup"]
                    + head
                    + rates(lambda o: WarmupLR(o, **common), peak, total + 5),
                )
            )
            yield " ".join(
                map(
                    str,
                    ["rate", "warmup_decay"]
                    + head
                    + rates(
                        lambda o: WarmupDecayLR(o, total_num_steps=total, **common), peak, total + 5
                    ),
                )
            )
        head = ["log", peak, floor, 0, total]
        schedules = torch.optim.lr_scheduler
        yield " ".join(
            map(
                str,
                ["rate", "constant"]
                + head
                + rates(lambda o: schedules.ConstantLR(o, 1.0), peak, total),
            )
        )
        yield " ".join(
            map(
                str,
                ["rate", "linear"]
                + head
                + rates(lambda o: schedules.LinearLR(o, 1.0, floor / peak, total), peak, total + 5),
            )
        )
        yield " ".join(
            map(
                str,
                ["rate", "cosine"]
                + head
                + rates(lambda o: schedules.CosineAnnealingLR(o, total, floor), peak, total),
            )
        )


with open(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "update_golden.txt"), "w"
) as golden:
    golden.writelines(line + "\n" for line in lines())
