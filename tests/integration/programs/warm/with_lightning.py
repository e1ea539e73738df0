"""Lightning's Trainer with DDP; see ends.py."""
import os

import lightning
import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from torch.utils.data import DataLoader, TensorDataset

from ends import end

# What is read as Lightning is imported.
print("rank zero:", rank_zero_only.rank, flush=True)
rank_zero_info("only rank 0 says this")


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout())

    def training_step(self, batch, index):
        x, order = batch
        loss = self.net(x).square().mean()
        drawn = torch.rand(1).item()
        print(self.global_rank, index, order.tolist(), loss.item(), drawn, flush=True)
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_train_end(self):
        end()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    lightning.seed_everything(7, workers=True)
    inputs = torch.arange(256.0).reshape(32, 8) / 256
    loader = DataLoader(TensorDataset(inputs, torch.arange(32)), batch_size=2, shuffle=True)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp",
        max_epochs=1, enable_progress_bar=False, logger=False, enable_checkpointing=False)
    trainer.fit(Net(), loader)


if __name__ == "__main__":
    main()
