"""A training loop with accelerate, as its guide has it; see ends.py."""
import numpy
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from ends import end


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(7, device_specific=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.arange(256.0).reshape(32, 8) / 256
    loader = DataLoader(TensorDataset(inputs, torch.arange(32)), batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(2):
        for x, order in loader:
            loss = model(x).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            print(accelerator.process_index, epoch, order.tolist(), loss.item(),
                  numpy.random.rand(), torch.rand(1).item(), flush=True)
    accelerator.print("mean", accelerator.reduce(loss.detach(), "mean").item())
    end()


if __name__ == "__main__":
    main()
