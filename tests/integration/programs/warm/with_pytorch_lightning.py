"""Lightning by its older name, with a model of its own; see ends.py."""
import os

import pytorch_lightning
from pytorch_lightning.demos.boring_classes import BoringModel
from pytorch_lightning.utilities import rank_zero_only
from torchmetrics.utilities import prints

from ends import end

# What is read as these are imported.
print("rank zero:", rank_zero_only.rank, prints.rank_zero_only.rank, flush=True)


class Model(BoringModel):
    def training_step(self, batch, index):
        told = super().training_step(batch, index)
        print(self.global_rank, index, told["loss"].item(), flush=True)
        return told

    def on_train_end(self):
        end()


pytorch_lightning.seed_everything(7, workers=True)
trainer = pytorch_lightning.Trainer(
    accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp", max_epochs=1,
    limit_train_batches=4, limit_val_batches=0, enable_progress_bar=False, logger=False,
    enable_checkpointing=False)
trainer.fit(Model())
