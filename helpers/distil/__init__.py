"""How the embedded model was made (appendix A1): a teacher, a smaller vocabulary, a student, its training."""
