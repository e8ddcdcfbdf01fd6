"""Learn handwritten digits with Hugging Face's Trainer, on as many GPUs as the job has just now.

A plain Trainer, but for the lines with `elastic` in them. It runs in a Slurm job under ones-run,
and by itself: python trainer_digits.py
"""

import argparse
import gzip
import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import ones

HELD_BACK = 297  # samples to test with


class Digits(Dataset):
    """The 1797 digits that come with scikit-learn, each as a text of 64 words: its pixels."""

    def __init__(self, part: slice) -> None:
        package = importlib.util.find_spec("sklearn")
        if package is None or package.origin is None:
            raise SystemExit("the digits come with scikit-learn; pip install scikit-learn")
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        with gzip.open(file, "rt") as lines:
            self.table = torch.from_numpy(np.loadtxt(lines, delimiter=",", dtype=np.int64)[part])

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.table[number, :-1], "labels": self.table[number, -1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)

    # Before anything that asks for the number of GPUs.
    elastic = ones.TransformersCallback(batch_size=100)
    network = BertConfig(
        vocab_size=17,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        num_labels=10,
    )
    arguments = TrainingArguments(
        output_dir=f"digits-{os.environ.get('SLURM_JOB_ID', '0')}",
        num_train_epochs=options.epochs,
        learning_rate=1e-3,
        save_strategy="no",  # of your own; those of ONES don't need it
        save_total_limit=2,
        logging_steps=5,
        average_tokens_across_devices=False,  # or this model's loss would grow with their number
        report_to="none",
        disable_tqdm=True,
        **elastic.here,
    )
    trainer = Trainer(
        BertForSequenceClassification(network),
        arguments,
        train_dataset=Digits(slice(HELD_BACK, None)),
        eval_dataset=Digits(slice(HELD_BACK)),
        callbacks=[elastic],
    )
    trainer.train(resume_from_checkpoint=elastic.checkpoint)
    loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        result = {
            "samples": elastic.job.samples,
            "epochs": options.epochs,
            "loss": loss,
            "gpus": elastic.job.world_size,
        }
        print(json.dumps(result), flush=True)
        if "RESULT_FILE" in os.environ:
            Path(os.environ["RESULT_FILE"]).write_text(json.dumps(result))


main()
