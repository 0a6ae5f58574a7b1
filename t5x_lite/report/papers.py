"""The papers that comparisons are about, as BibTeX for those who publish a report. A comparison
names them by their keys in PAPERS, or gives the BibTeX entry of another paper.
"""

from collections.abc import Iterable
from typing import NamedTuple

from t5x_lite.errors import BAD_CONFIG, UserError, nearest


class Paper(NamedTuple):
    """A paper, with its authors in the form of BibTeX: joined by " and "."""

    authors: str
    title: str
    year: int
    venue: str  # a journal, a conference, or arXiv:NUMBER


PAPERS = {
    "berglund2023": Paper(
        "Lukas Berglund and Meg Tong and Max Kaufmann and Mikita Balesni and "
        "Asa Cooper Stickland and Tomasz Korbak and Owain Evans",
        "The Reversal Curse: LLMs trained on ``A is B'' fail to learn ``B is A''",
        2023,
        "arXiv:2309.12288",
    ),
    "charpentier2024": Paper(
        "Lucas Georges Gabriel Charpentier and David Samuel",
        "GPT or BERT: why not both?",
        2024,
        "arXiv:2410.24159",
    ),
    "devlin2019": Paper(
        "Jacob Devlin and Ming-Wei Chang and Kenton Lee and Kristina Toutanova",
        "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
        2019,
        "NAACL",
    ),
    "gisserot-boukhlef2025": Paper(
        "Hippolyte Gisserot-Boukhlef and Nicolas Boizard and Manuel Faysse and Duarte M. Alves and "
        "Emmanuel Malherbe and Andr{\\'e} F. T. Martins and C{\\'e}line Hudelot and Pierre Colombo",
        "Should We Still Pretrain Encoders with Masked Language Modeling?",
        2025,
        "arXiv:2507.00994",
    ),
    "gupta2018": Paper(
        "Vineet Gupta and Tomer Koren and Yoram Singer",
        "Shampoo: Preconditioned Stochastic Tensor Optimization",
        2018,
        "ICML",
    ),
    "hochreiter1997": Paper(
        'Sepp Hochreiter and J{\\"u}rgen Schmidhuber',
        "Long Short-Term Memory",
        1997,
        "Neural Computation",
    ),
    "hoffmann2022": Paper(
        "Jordan Hoffmann and Sebastian Borgeaud and Arthur Mensch and others",
        "Training Compute-Optimal Large Language Models",
        2022,
        "arXiv:2203.15556",
    ),
    "jordan2024": Paper(
        "Keller Jordan and others",
        "Muon: An optimizer for hidden layers in neural networks",
        2024,
        "https://kellerjordan.github.io/posts/muon/",
    ),
    "joshi2020": Paper(
        "Mandar Joshi and Danqi Chen and Yinhan Liu and Daniel S. Weld and Luke Zettlemoyer and "
        "Omer Levy",
        "SpanBERT: Improving Pre-training by Representing and Predicting Spans",
        2020,
        "TACL",
    ),
    "kaplan2020": Paper(
        "Jared Kaplan and Sam McCandlish and Tom Henighan and Tom B. Brown and Benjamin Chess and "
        "Rewon Child and Scott Gray and Alec Radford and Jeffrey Wu and Dario Amodei",
        "Scaling Laws for Neural Language Models",
        2020,
        "arXiv:2001.08361",
    ),
    "lan2020": Paper(
        "Zhenzhong Lan and Mingda Chen and Sebastian Goodman and Kevin Gimpel and Piyush Sharma "
        "and Radu Soricut",
        "ALBERT: A Lite BERT for Self-supervised Learning of Language Representations",
        2020,
        "ICLR",
    ),
    "lester2021": Paper(
        "Brian Lester and Rami Al-Rfou and Noah Constant",
        "The Power of Scale for Parameter-Efficient Prompt Tuning",
        2021,
        "EMNLP",
    ),
    "liu2019": Paper(
        "Yinhan Liu and Myle Ott and Naman Goyal and Jingfei Du and Mandar Joshi and Danqi Chen "
        "and Omer Levy and Mike Lewis and Luke Zettlemoyer and Veselin Stoyanov",
        "RoBERTa: A Robustly Optimized BERT Pretraining Approach",
        2019,
        "arXiv:1907.11692",
    ),
    "loshchilov2019": Paper(
        "Ilya Loshchilov and Frank Hutter", "Decoupled Weight Decay Regularization", 2019, "ICLR"
    ),
    "magnusson2025": Paper(
        "Ian Magnusson and Nguyen Tai and Ben Bogin and David Heineman and others",
        "DataDecide: How to Predict Best Pretraining Data with Small Experiments",
        2025,
        "ICML",
    ),
    "muennighoff2023": Paper(
        "Niklas Muennighoff and Alexander M. Rush and Boaz Barak and Teven Le Scao and "
        "Aleksandra Piktus and Nouamane Tazi and Sampo Pyysalo and Thomas Wolf and Colin Raffel",
        "Scaling Data-Constrained Language Models",
        2023,
        "NeurIPS",
    ),
    "narang2021": Paper(
        "Sharan Narang and Hyung Won Chung and Yi Tay and Liam Fedus and Thibault Fevry and "
        "Michael Matena and Karishma Malkan and Noah Fiedel and Noam Shazeer and Zhenzhong Lan and "
        "Yanqi Zhou and Wei Li and Nan Ding and Jake Marcus and Adam Roberts and Colin Raffel",
        "Do Transformer Modifications Transfer Across Implementations and Applications?",
        2021,
        "EMNLP",
    ),
    "nie2025": Paper(
        "Shen Nie and Fengqi Zhu and Zebin You and others",
        "Large Language Diffusion Models",
        2025,
        "arXiv:2502.09992",
    ),
    "peters2018": Paper(
        "Matthew E. Peters and Mark Neumann and Mohit Iyyer and Matt Gardner and Christopher Clark "
        "and Kenton Lee and Luke Zettlemoyer",
        "Deep Contextualized Word Representations",
        2018,
        "NAACL",
    ),
    "prabhudesai2025": Paper(
        "Mihir Prabhudesai and Mengning Wu and Amir Zadeh and Katerina Fragkiadaki and Deepak "
        "Pathak",
        "Diffusion Beats Autoregressive in Data-Constrained Settings",
        2025,
        "arXiv:2507.15857",
    ),
    "raffel2020": Paper(
        "Colin Raffel and Noam Shazeer and Adam Roberts and Katherine Lee and Sharan Narang and "
        "Michael Matena and Yanqi Zhou and Wei Li and Peter J. Liu",
        "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
        2020,
        "JMLR",
    ),
    "samuel2025": Paper(
        "David Samuel and Lucas Georges Gabriel Charpentier",
        "Dual-objective Language Models: Training Efficiency Without Overfitting",
        2025,
        "arXiv:2512.14549",
    ),
    "sahoo2024": Paper(
        "Subham Sekhar Sahoo and Marianne Arriola and Yair Schiff and others",
        "Simple and Effective Masked Diffusion Language Models",
        2024,
        "NeurIPS",
    ),
    "shazeer2018": Paper(
        "Noam Shazeer and Mitchell Stern",
        "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost",
        2018,
        "ICML",
    ),
    "tay2022": Paper(
        "Yi Tay and Jason Wei and Hyung Won Chung and Vinh Q. Tran and others",
        "Transcending Scaling Laws with 0.1\\% Extra Compute",
        2022,
        "arXiv:2210.11399",
    ),
    "tay2023": Paper(
        "Yi Tay and Mostafa Dehghani and Vinh Q. Tran and Xavier Garcia and others",
        "UL2: Unifying Language Learning Paradigms",
        2023,
        "ICLR",
    ),
    "vaswani2017": Paper(
        "Ashish Vaswani and Noam Shazeer and Niki Parmar and Jakob Uszkoreit and Llion Jones and "
        "Aidan N. Gomez and {\\L}ukasz Kaiser and Illia Polosukhin",
        "Attention Is All You Need",
        2017,
        "NeurIPS",
    ),
    "weller2025": Paper(
        "Orion Weller and Kathryn Ricci and Marc Marone and Antoine Chaffin and Dawn Lawrie and "
        "Benjamin {Van Durme}",
        "Seq vs Seq: An Open Suite of Paired Encoders and Decoders",
        2025,
        "arXiv:2507.11412",
    ),
    "yu2024": Paper(
        "Xinru Yu and Bin Guo and Shiwei Luo and Jie Wang and Tao Ji and Yuanbin Wu",
        "AntLM: Bridging Causal and Masked Language Models",
        2024,
        "CoNLL",
    ),
    "zhang2025a": Paper(
        "Biao Zhang and Fedor Moiseev and Joshua Ainslie and Paul Suganthan and Min Ma and others",
        "Encoder-Decoder Gemma: Improving the Quality-Efficiency Trade-Off via Adaptation",
        2025,
        "arXiv:2504.06225",
    ),
    "zhang2025b": Paper(
        "Biao Zhang and Yong Cheng and Siamak Shakeri and Xinyi Wang and Min Ma and Orhan Firat",
        "Encoder-Decoder or Decoder-Only? Revisiting Encoder-Decoder Large Language Model",
        2025,
        "arXiv:2510.26622",
    ),
}


def check_papers(named: Iterable[str]) -> None:
    """Reject names that are neither a key of PAPERS nor a BibTeX entry.

    >>> check_papers(["rafel2020"])
    Traceback (most recent call last):
    t5x_lite.errors.UserError: papers: got 'rafel2020'; did you mean raffel2020?
    """
    for one in named:
        if one not in PAPERS and not _is_entry(one):
            raise UserError(BAD_CONFIG, f"papers: got {one!r}; {nearest(one, PAPERS)}")


def _is_entry(text: str) -> bool:
    return text.lstrip().startswith("@")


def bibtex(named: Iterable[str]) -> str:
    """Return the BibTeX entries of papers, named as for check_papers.

    >>> print(bibtex(["loshchilov2019"]))
    @misc{loshchilov2019,
      author = {Ilya Loshchilov and Frank Hutter},
      title = {{Decoupled Weight Decay Regularization}},
      year = {2019},
      howpublished = {ICLR}
    }
    <BLANKLINE>
    """
    entries = []
    for key in named:
        if _is_entry(key):
            entries.append(f"{key.strip()}\n")
            continue
        paper = PAPERS[key]
        is_page = paper.venue.startswith("https://")
        venue = f"\\url{{{paper.venue}}}" if is_page else paper.venue
        entries.append(
            f"@misc{{{key},\n"
            f"  author = {{{paper.authors}}},\n"
            f"  title = {{{{{paper.title}}}}},\n"
            f"  year = {{{paper.year}}},\n"
            f"  howpublished = {{{venue}}}\n"
            "}\n"
        )
    return "\n".join(entries)
